"""Who has which samples, on federations small enough to count by hand."""

from __future__ import annotations

import gc
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedrecall import Dirichlet, Federation, Iid, Images, InputError, Plain
from fedrecall.data.assignment import Assignment
from fedrecall.data.samples import Samples

#                 sample  0  1  2  3  4  5  6  7  8   9
CLIENT = np.array([2, 0, 1, 0, 1, 0, 2, 1, 2, -1], np.int32)
VALIDATION = np.array([0, 0, 0, 1, 1, 0, 0, 1, 0, 0], bool)
LABELS = np.array([2, 0, 1, 1, 2, 2, 2, 0, 1, 0])


@pytest.fixture(autouse=True)
def files_below_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def small(tmp_path: Path) -> Federation:
    """Client 0 trains on samples 1 and 5, client 1 on 2; 3, and 4 and 7 are for validation; 2 is held out."""
    x = np.arange(30, dtype=np.float32).reshape(10, 3)
    train = Samples.write(tmp_path, "train", x, LABELS)
    return Federation(train, None, Assignment(CLIENT, VALIDATION, clients=3, held_out=1), 3, Plain())


def rows(count: int, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(count)
    return random.normal(size=(count, 4)).astype(np.float32), random.integers(0, classes, count)


def split(x: np.ndarray, **options: object) -> Federation:
    return Federation.from_arrays(x, np.arange(len(x)) % 2, partition=Iid(clients=2, validation=0.0), **options)


def as_seen(federation: Federation) -> torch.Tensor:
    """All training samples as a model sees them without augmentation."""
    return federation.transform(federation.train.gather(torch.arange(len(federation.train)))[0])


def test_indices_are_those_of_the_assignment(small: Federation) -> None:
    assert [small.train_indices(k).tolist() for k in range(3)] == [[1, 5], [2], [0, 6, 8]]
    assert [small.validation_indices(k).tolist() for k in range(3)] == [[3], [4, 7], []]


def test_beta_is_the_share_of_each_class_among_the_training_labels(small: Federation) -> None:
    # Labels of samples 1 and 5: 0 and 2. Of 2: 1. Of 0, 6 and 8: 2, 2 and 1.
    assert small.beta(0).tolist() == [0.5, 0.0, 0.5]
    assert small.beta(1).tolist() == [0.0, 1.0, 0.0]
    assert torch.equal(small.beta(2), torch.tensor([0.0, 1 / 3, 2 / 3]))


def test_counts_are_those_of_the_training_labels(small: Federation) -> None:
    assert small.labels(2).counts.tolist() == [0, 1, 2]
    assert small.training_counts().tolist() == [[1, 0, 1], [0, 1, 0], [0, 1, 2]]


def test_the_population_is_all_but_the_held_out_clients(small: Federation) -> None:
    assert (len(small), small.population) == (3, 2)


def test_the_validation_pool_is_of_training_clients_one_after_the_other(small: Federation) -> None:
    source, positions = small.pool("validation")
    assert source is small.train
    assert positions.tolist() == [3, 4, 7]


def test_the_held_out_pool_is_all_that_the_held_out_clients_have(small: Federation) -> None:
    source, positions = small.pool("held_out")
    assert source is small.train
    assert positions.tolist() == [0, 6, 8]


def test_owners_are_the_clients_of_the_validation_pool(small: Federation) -> None:
    assert small.owners().tolist() == [0, 1, 1]


def test_a_split_that_is_not_there_is_refused(small: Federation) -> None:
    with pytest.raises(InputError, match="no 'test' data"):
        small.pool("test")


@pytest.mark.parametrize("client", [-1, 3])
def test_a_client_that_is_not_there_is_refused(small: Federation, client: int) -> None:
    with pytest.raises(InputError, match=f"no client {client}; clients from 0 to 2"):
        small.train_indices(client)


def test_the_test_pool_is_the_test_set_in_its_order() -> None:
    x, y = rows(20)
    federation = Federation.from_arrays(x, y, test=rows(7), partition=Iid(clients=2))
    source, positions = federation.pool("test")
    assert (source.x == rows(7)[0]).all()
    assert positions.tolist() == list(range(7))


def test_each_assigned_sample_is_in_one_place_and_indices_ascend() -> None:
    x, y = rows(203)
    federation = Federation.from_arrays(x, y, partition=Dirichlet(alpha=0.3, clients=10, validation=0.25))
    parts = [part(k) for k in range(10) for part in (federation.train_indices, federation.validation_indices)]
    assert [len(part) for part in parts] == [15, 5] * 10  # 203 // 10 = 20, a quarter for validation
    assert all((np.diff(part) > 0).all() for part in parts)
    unassigned = np.flatnonzero(federation.assignment.client < 0)
    assert sorted(np.concatenate([*parts, unassigned]).tolist()) == list(range(203))


def test_features_of_float64_are_seen_as_float32() -> None:
    x = np.random.default_rng(0).normal(size=(6, 5))
    federation = split(x)
    assert federation.train.x.dtype == np.float64
    assert torch.equal(as_seen(federation), torch.from_numpy(x).float())


def test_token_ids_are_seen_as_int64() -> None:
    x = np.random.default_rng(0).integers(0, 30000, (6, 5)).astype(np.int32)
    federation = split(x)
    assert federation.sample_shape == (5,)
    assert torch.equal(as_seen(federation), torch.from_numpy(x).long())


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


LAYOUTS = {
    "nhw": (pixels(6, 8, 9), "auto", lambda x: x[:, None]),
    "nhwc": (pixels(6, 8, 9, 3), "auto", lambda x: x.transpose(0, 3, 1, 2)),
    "nchw": (pixels(6, 3, 8, 9), "auto", lambda x: x),
    "nchw grey": (pixels(6, 1, 8, 9), "auto", lambda x: x),
    "nchw said": (pixels(6, 3, 8, 3), "nchw", lambda x: x),
    "nhwc said": (pixels(6, 3, 8, 3), "nhwc", lambda x: x.transpose(0, 3, 1, 2)),
    "nhwc of two channels": (pixels(6, 8, 9, 2), "nhwc", lambda x: x.transpose(0, 3, 1, 2)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_images_are_seen_channels_first_and_normalised(name: str) -> None:
    x, layout, channels_first = LAYOUTS[name]
    images = channels_first(x).astype(np.float64) / 255
    mean, std = images.mean(axis=(0, 2, 3), keepdims=True), images.std(axis=(0, 2, 3), keepdims=True)
    federation = split(x, layout=layout)
    assert federation.sample_shape == images.shape[1:]
    np.testing.assert_allclose(as_seen(federation).numpy(), (images - mean) / std, rtol=0, atol=2e-6)


def test_a_given_transform_is_used() -> None:
    federation = split(pixels(6, 8, 9, 3), transform=Images((0.0,) * 3, (1 / 255,) * 3))
    assert as_seen(federation)[5, 2, 7, 8] == float(federation.train.x[5, 7, 8, 2])


def test_classes_are_counted_in_training_and_test_labels() -> None:
    assert split(rows(6)[0], test=(rows(2)[0], [0, 7])).num_classes == 8
    assert split(rows(6)[0]).num_classes == 2


def test_clients_given_apart_keep_their_numbers_and_sizes() -> None:
    pairs = [rows(10), rows(1), rows(25)]
    federation = Federation.from_clients(pairs, num_classes=3, validation=0.2)
    sizes = [(len(federation.train_indices(k)), len(federation.validation_indices(k))) for k in range(3)]
    assert sizes == [(8, 2), (1, 0), (20, 5)]


def test_clients_given_apart_keep_their_samples() -> None:
    pairs = [rows(10), rows(4), rows(25)]
    federation = Federation.from_clients(pairs, num_classes=3, validation=0.0)
    for k, (x, y) in enumerate(pairs):
        found, labels = federation.train.gather(torch.from_numpy(federation.train_indices(k)))
        assert (found.numpy() == x).all()
        assert (labels.numpy() == y).all()


def test_without_validation_the_pool_is_empty() -> None:
    federation = Federation.from_clients([rows(10), rows(5)], validation=0)
    assert len(federation.pool("validation")[1]) == len(federation.owners()) == 0


def test_a_client_of_one_class_has_all_of_beta_there() -> None:
    federation = Federation.from_clients([(rows(6)[0], [1] * 6), rows(9)], num_classes=3)
    assert federation.beta(0).tolist() == [0.0, 1.0, 0.0]


def test_held_out_clients_keep_no_validation_data() -> None:
    federation = Federation.from_clients([rows(10), rows(20), rows(30)], validation=0.5, held_out=1)
    assert federation.population == 2
    assert len(federation.pool("held_out")[1]) == 30
    assert np.bincount(federation.owners()).tolist() == [5, 10]


def test_the_samples_of_a_federation_can_be_pickled() -> None:
    federation = split(rows(6)[0])
    assert (pickle.loads(pickle.dumps(federation.train)).x == rows(6)[0]).all()


def test_a_mapped_file_is_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", rows(6)[0])
    assert split(np.load(tmp_path / "mine.npy", mmap_mode="r")).train.x_path == tmp_path / "mine.npy"


def test_the_files_go_with_the_federation() -> None:
    federation = split(rows(6)[0])
    folder = federation.train.x_path.parent
    assert folder.is_dir()
    del federation
    gc.collect()
    assert not folder.exists()


def test_the_files_go_with_a_federation_that_was_used() -> None:
    federation = Federation.from_clients([rows(10), rows(5)])
    folder = federation.train.x_path.parent
    federation.pool("validation")
    del federation
    gc.collect()
    assert not folder.exists()


WIDE = np.zeros((3, 5), np.float32), [0, 1, 0]  # beside rows of four
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    **{
        f"images of {shape}": (lambda shape=shape: split(pixels(*shape)), "say layout='nchw' or 'nhwc'")
        for shape in [(6, 3, 8, 3), (6, 1, 1, 1), (6, 5, 8, 7)]
    },
    "an unknown layout": (lambda: split(pixels(6, 8, 9, 3), layout="hwc"), "layout is 'hwc'"),
    "a wide test set": (
        lambda: split(rows(6)[0], test=WIDE), r"of shape \(4,\), but a test sample float32 of shape \(5,\)"
    ),
    "a wide client": (
        lambda: Federation.from_clients([rows(3), WIDE, rows(4)]), r"\(4,\) at client 0, \(5,\) at client 1"
    ),
    "a client without a label": (
        lambda: Federation.from_clients([rows(3), (rows(4)[0], [0, 1, 2])]), "4 client 1 samples but 3 client 1 labels"
    ),
    "no clients": (lambda: Federation.from_clients([]), "there are no clients"),
    "millions of classes": (
        lambda: Federation.from_arrays(np.zeros((2, 2), np.float32), np.array([0, 10**12]), partition=Iid(clients=1)),
        r"a label is 1000000000000; say num_classes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_makes_no_federation_is_refused(what: str) -> None:
    make, said = REFUSED[what]
    with pytest.raises(InputError, match=said):
        make()
