"""CIFAR-10 is read from small files of the official layout; the real ones are read when they are there."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedrecall.data.sources import DATASETS, cifar, cifar10
from fedrecall.errors import InputError

RECORDS = 20
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FILES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


@pytest.fixture
def unpacked(tmp_path, monkeypatch):
    """The folder above cifar-10-batches-bin, its files shortened to 20 records of random bytes."""
    monkeypatch.setattr(cifar, "RECORDS", RECORDS)
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    random = np.random.default_rng(0)
    for name in FILES:
        records = random.integers(0, 256, (RECORDS, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / name)
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")
    return tmp_path


def pixel(folder, file, record, row, column, channel):
    """One byte at the place the format's description gives: label, then red, green and blue by rows."""
    raw = (folder / "cifar-10-batches-bin" / file).read_bytes()
    return raw[record * 3073 + 1 + channel * 1024 + row * 32 + column]


def label(folder, file, record):
    return (folder / "cifar-10-batches-bin" / file).read_bytes()[record * 3073]


def test_planar_records_become_channels_last_images_in_file_order(unpacked):
    data = cifar10(unpacked)
    assert data.x_train.shape == (5 * RECORDS, 32, 32, 3)
    assert data.x_test.shape == (RECORDS, 32, 32, 3)
    assert data.x_train.dtype == data.x_test.dtype == np.uint8
    for batch, record, row, column, channel in [(1, 0, 0, 0, 0), (2, 3, 1, 2, 1), (5, 19, 31, 30, 2)]:
        found = data.x_train[(batch - 1) * RECORDS + record, row, column, channel]
        assert found == pixel(unpacked, f"data_batch_{batch}.bin", record, row, column, channel)
    assert data.x_test[7, 5, 6, 2] == pixel(unpacked, "test_batch.bin", 7, 5, 6, 2)


def test_labels_are_int64_in_file_order(unpacked):
    data = cifar10(unpacked)
    assert data.y_train.dtype == data.y_test.dtype == np.int64
    train = [label(unpacked, file, i) for file in FILES[:5] for i in range(RECORDS)]
    assert data.y_train.tolist() == train
    assert data.y_test.tolist() == [label(unpacked, "test_batch.bin", i) for i in range(RECORDS)]


def test_images_lie_contiguous_in_memory(unpacked):
    assert cifar10(unpacked).x_train.flags.c_contiguous


def test_class_names_come_from_the_folder(unpacked):
    data = cifar10(unpacked)
    assert data.class_names == tuple(NAMES)
    assert data.num_classes == 10


def test_the_folder_itself_may_be_given_as_a_string(unpacked):
    inner = cifar10(str(unpacked / "cifar-10-batches-bin"))
    np.testing.assert_array_equal(inner.x_train, cifar10(unpacked).x_train)


def test_the_folder_may_come_from_the_environment(unpacked, monkeypatch):
    monkeypatch.setenv("FEDRECALL_DATA", str(unpacked))
    assert len(cifar10().x_train) == 5 * RECORDS


def test_the_argument_goes_before_the_environment(unpacked, monkeypatch):
    monkeypatch.setenv("FEDRECALL_DATA", "/nowhere")
    assert len(cifar10(unpacked).x_train) == 5 * RECORDS


def test_augmentation_is_crop_and_flip_and_can_be_left_out(unpacked):
    augmented, plain = cifar10(unpacked).transform, cifar10(unpacked, augment=False).transform
    assert (augmented.crop_padding, augmented.flip) == (4, True)
    assert (plain.crop_padding, plain.flip) == (0, False)
    assert (augmented.mean, augmented.std) == (plain.mean, plain.std)


def test_no_folder_given_says_how_to_give_one(monkeypatch):
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)
    with pytest.raises(InputError, match=r"cifar10.*--data DIR or FEDRECALL_DATA.*cifar-10-batches-bin"):
        cifar10()


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no folder .*absent.*--data DIR or FEDRECALL_DATA"):
        cifar10(tmp_path / "absent")


@pytest.mark.parametrize("name", [*FILES, "batches.meta.txt"])
def test_a_missing_file_is_named_with_its_folder(unpacked, name):
    (unpacked / "cifar-10-batches-bin" / name).unlink()
    with pytest.raises(InputError, match=rf"{name} is missing in .*cifar-10-batches-bin.*FEDRECALL_DATA"):
        cifar10(unpacked)


@pytest.mark.parametrize("name", ["data_batch_3.bin", "test_batch.bin"])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_the_wrong_size_is_named(unpacked, name, change):
    path = unpacked / "cifar-10-batches-bin" / name
    path.write_bytes((path.read_bytes() + b"\0")[: RECORDS * 3073 + change])
    with pytest.raises(
        InputError, match=rf"{name} has {RECORDS * 3073 + change} bytes, expected {RECORDS * 3073}"
    ):
        cifar10(unpacked)


def test_the_official_size_is_expected(unpacked, monkeypatch):
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"data_batch_1\.bin has 61460 bytes, expected 30730000"):
        cifar10(unpacked)


def test_a_label_above_9_is_refused_with_its_file(unpacked):
    path = unpacked / "cifar-10-batches-bin" / "data_batch_4.bin"
    raw = bytearray(path.read_bytes())
    raw[5 * 3073] = 10
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"data_batch_4\.bin has a label 10"):
        cifar10(unpacked)


def test_a_wrong_number_of_class_names_is_refused(unpacked):
    (unpacked / "cifar-10-batches-bin" / "batches.meta.txt").write_text("cat\ndog\n")
    with pytest.raises(InputError, match=r"batches\.meta\.txt holds 2 class names, expected 10"):
        cifar10(unpacked)


def test_data_sets_are_listed_under_their_names(unpacked):
    assert set(DATASETS) >= {"fashion_mini", "cifar10"}
    assert DATASETS["fashion_mini"]().name == "fashion_mini"
    assert DATASETS["cifar10"](folder=unpacked).name == "cifar10"


def real_cifar10() -> bool:
    root = os.environ.get("FEDRECALL_DATA")
    return bool(root) and (Path(root) / "cifar-10-batches-bin").is_dir()


@pytest.mark.real_data
@pytest.mark.skipif(not real_cifar10(), reason="FEDRECALL_DATA has no folder cifar-10-batches-bin")
def test_the_real_cifar10_has_its_known_counts_and_statistics():
    data = cifar10()
    assert data.x_train.shape == (50_000, 32, 32, 3)
    assert data.x_test.shape == (10_000, 32, 32, 3)
    assert np.bincount(data.y_train).tolist() == [5000] * 10
    assert np.bincount(data.y_test).tolist() == [1000] * 10
    assert data.class_names == tuple(NAMES)
    for c in range(3):
        channel = data.x_train[..., c] / 255
        assert round(channel.mean(), 4) == data.transform.mean[c]
        assert round(channel.std(), 4) == data.transform.std[c]
