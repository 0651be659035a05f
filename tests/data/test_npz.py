"""Arrays of the user's own: what an `.npz` file may hold, and what is refused."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrecall import Federation, Iid, Natural
from fedrecall.data.sources import DATASETS, npz
from fedrecall.data.sources.own_files import check_unpacked_size
from fedrecall.data.transform import Images, Plain
from fedrecall.errors import InputError

random = np.random.default_rng(0)
GOOD: dict[str, Any] = {
    "x_train": random.normal(size=(12, 5)).astype(np.float32),
    "y_train": np.arange(12) % 3,
    "x_test": random.normal(size=(6, 5)).astype(np.float32),
    "y_test": np.arange(6) % 3,
}
IMAGES = {
    **GOOD,
    "x_train": random.integers(0, 256, (12, 8, 8, 3), np.uint8),
    "x_test": random.integers(0, 256, (6, 8, 8, 3), np.uint8),
}


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)


def save(**changes: Any) -> str:
    """my.npz with the good arrays, some of them changed; None leaves one out."""
    arrays = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    np.savez_compressed("my.npz", **arrays)
    return "my.npz"


def refused(expected: str, **options: Any) -> None:
    with pytest.raises(InputError, match=expected) as caught:
        npz("my.npz", **options)
    assert "\n" not in str(caught.value)


def npy(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    return file.getvalue()


def header(descr: str, shape: str) -> bytes:
    """The beginning of an `.npy` file whose header says this, whatever follows."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def zipped(compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> None:
    """my.npz with these bytes in place of the good arrays' own."""
    content = {key: npy(array) for key, array in GOOD.items()} | members
    with zipfile.ZipFile("my.npz", "w", compression) as archive:
        for key, value in content.items():
            archive.writestr(f"{key}.npy", value)


# What is read.


def test_numbers_arrive_as_they_are() -> None:
    data = npz(save())
    for key, array in GOOD.items():
        np.testing.assert_array_equal(getattr(data, key), array)
    assert data.y_train.dtype == data.y_test.dtype == np.int64
    assert (data.num_classes, data.transform, data.ids) == (3, Plain(), None)


def test_the_arrays_are_mapped_and_used_where_they_lie() -> None:
    data = npz(save())
    federation = Federation.from_data(data, Iid(clients=2))
    assert federation.train.x_path == Path(data.x_train.filename)


def test_colour_images_are_normalised_by_the_training_images() -> None:
    data = npz(save(**IMAGES))
    np.testing.assert_array_equal(data.x_train, IMAGES["x_train"])
    assert isinstance(data.transform, Images)
    np.testing.assert_allclose(data.transform.mean, (IMAGES["x_train"] / 255).mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(data.transform.std, (IMAGES["x_train"] / 255).std(axis=(0, 1, 2)))
    assert (data.transform.crop_padding, data.transform.flip) == (0, False)


def test_grey_images_get_a_channel() -> None:
    data = npz(save(x_train=IMAGES["x_train"][..., 0], x_test=IMAGES["x_test"][..., 0]))
    assert data.x_train.shape == (12, 8, 8, 1)
    np.testing.assert_array_equal(data.x_train[..., 0], IMAGES["x_train"][..., 0])


@pytest.mark.parametrize("layout", ["auto", "nchw"])
def test_channels_first_become_channels_last(layout: str) -> None:
    first = {key: IMAGES[key].transpose(0, 3, 1, 2) for key in ("x_train", "x_test")}
    np.testing.assert_array_equal(npz(save(**first), layout=layout).x_train, IMAGES["x_train"])


def test_the_layout_is_part_of_what_is_cached() -> None:
    square = random.integers(0, 256, (12, 3, 3, 3), np.uint8)
    save(x_train=square, x_test=square[:6])
    np.testing.assert_array_equal(npz("my.npz", layout="nhwc").x_train, square)
    np.testing.assert_array_equal(npz("my.npz", layout="nchw").x_train, square.transpose(0, 2, 3, 1))


def test_augmentation_is_for_images() -> None:
    transform = npz(save(**IMAGES), augment=True).transform
    assert isinstance(transform, Images)
    assert (transform.crop_padding, transform.flip) == (4, True)
    save()
    refused("data.augment is true, but the samples are not images", augment=True)


def test_token_ids_stay_whole_numbers() -> None:
    data = npz(save(x_train=np.arange(24).reshape(12, 2), x_test=np.arange(12).reshape(6, 2)))
    assert data.x_train.dtype == np.int64
    assert data.transform == Plain()


@pytest.mark.parametrize("change", [np.asfortranarray, lambda x: x.astype(">f4"), lambda x: x.astype(np.float64)])
def test_other_orders_and_floats_are_kept_as_plain_float32(change: Any) -> None:
    data = npz(save(x_train=change(GOOD["x_train"]), x_test=change(GOOD["x_test"])))
    np.testing.assert_array_equal(data.x_train, GOOD["x_train"])
    assert data.x_train.dtype == np.float32
    assert data.x_train.dtype.isnative
    assert data.x_train.flags.c_contiguous


def test_an_array_larger_than_a_piece_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[npz.__module__]  # whose name in the package is the function's
    monkeypatch.setattr(module, "PIECE", 50)  # two and a half rows of 20 bytes
    np.testing.assert_array_equal(npz(save()).x_train, GOOD["x_train"])


@pytest.mark.parametrize("key", ["ids", "ids_train"])
@pytest.mark.parametrize("ids", [np.arange(12) // 4, np.repeat(["ann", "bob", "eve"], 4)])
def test_ids_are_natural_clients(key: str, ids: np.ndarray) -> None:
    federation = Federation.from_data(npz(save(**{key: ids})), Natural(validation=0))
    assert [federation.train_indices(k).tolist() for k in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_class_names_say_how_many_classes_there_are() -> None:
    names = ["cat", "a 'dog'", "<b>bird</b>\n", "fish"]
    data = npz(save(class_names=np.array(names)))
    assert data.class_names == tuple(names)
    assert data.num_classes == 4


def test_the_number_of_classes_can_be_given() -> None:
    assert npz(save(), classes=10).num_classes == 10


def test_a_changed_file_is_read_again() -> None:
    assert npz(save()).num_classes == 3
    assert npz(save(y_train=np.arange(12))).num_classes == 12


def test_other_arrays_in_the_file_are_not_looked_at() -> None:
    assert npz(save(more=np.array([{}], object))).num_classes == 3


def test_a_file_may_lie_below_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    Path(save()).rename(tmp_path / "data" / "my.npz")
    assert npz("my.npz", folder=tmp_path / "data").num_classes == 3
    monkeypatch.setenv("FEDRECALL_DATA", str(tmp_path / "data"))
    assert npz("my.npz").num_classes == 3


def test_a_header_that_python_2_wrote_is_read_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    old = npy(GOOD["x_train"]).replace(b"(12, 5), }  ", b"(12L, 5L), }")
    assert b"12L" in old
    zipped(x_train=old)
    np.testing.assert_array_equal(npz("my.npz").x_train, GOOD["x_train"])
    assert list(recwarn) == []


def test_token_ids_train_end_to_end_with_wsm(fedrecall: Any, tmp_path: Path) -> None:
    labels = np.arange(120) % 3
    tokens = random.integers(1, 4, (120, 6)) + 3 * labels[:, None]  # each class has words of its own
    save(x_train=tokens[:90], y_train=labels[:90], x_test=tokens[90:], y_test=labels[90:])
    finished = fedrecall(
        *("run", "demo", "data=npz", "data.path=my.npz", "model=embedding", "model.vocabulary=10"),
        *("objective=wsm", "partition.clients=6", "rounds=20", "local.batch_size=4", "local.lr=1"),
        *("evaluation.test_last=1", "forgetting.every=0", "--engine", "serial", "--json", "--out", "out"),
    )
    assert finished.code == 0, finished.err
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["final_accuracy"] > 0.9


# What is refused.


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "harm",)

    save(x_train=np.array([Harm()] * 12, object))
    refused("my.npz: x_train: it is an array of Python objects, which is a pickle")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"x_train": None, "X_train": GOOD["x_train"]}, r"there is no array x_train; did you mean 'X_train'\?"),
        ({"y_test": None, "x_test": None}, "there is no array x_test; there are: x_train, y_train"),
        ({"y_train": np.zeros(11, int)}, "x_train has 12 samples, but y_train has 11 entries"),
        ({"y_test": np.zeros(5, int)}, "x_test has 6 samples, but y_test has 5 entries"),
        ({"ids": np.zeros(5, int)}, "x_train has 12 samples, but ids has 5 entries"),
        ({"y_train": np.zeros(12)}, "y_train: it is of type float64; whole numbers from 0 were expected"),
        ({"y_train": np.zeros((12, 1), int)}, r"y_train: its shape is \(12, 1\); one dimension was expected"),
        ({"y_train": np.full(12, -1)}, "x_train and y_train: a training label is -1;"),
        ({"y_test": np.full(6, 2**64 - 1, np.uint64)}, "x_test and y_test: a test label is -1;"),
        ({"y_train": np.arange(12) * 10**11}, r"a label is 1100000000000; if there are .* data\.classes"),
        ({"x_train": np.full((12, 5), np.nan, np.float32)}, "x_train and y_train: training sample 0 has a value"),
        ({"x_test": np.full((6, 5), np.inf, np.float32)}, "x_test and y_test: test sample 0 has a value"),
        ({"x_train": np.full((12, 5), 1e300)}, "training sample 0 has a value that is not finite"),
        ({"x_train": np.full((12, 5), "a")}, "x_train: it is of type <U1; numbers were expected"),
        ({"x_train": np.zeros((12, 5), complex)}, "x_train: it is of type complex128; numbers were expected"),
        ({"x_train": np.float32(1)}, r"x_train: its shape is \(\); a row for each sample was expected"),
        ({"x_train": np.zeros((0, 5), np.float32)}, r"x_train: its shape is \(0, 5\), which is empty"),
        ({"x_test": np.zeros((6, 4), np.float32)}, r"shape \(5,\), but one of x_test is float32 of shape \(4,\)"),
        ({"x_test": np.zeros((6, 5), int)}, "x_train is float32 .* x_test is int64"),
        (
            {"x_train": np.zeros((12, 3, 3, 3), np.uint8), "x_test": np.zeros((6, 3, 3, 3), np.uint8)},
            "layout='nchw'",
        ),
        ({"class_names": np.array(["a", "b"])}, "a label is 2; labels from 0 to 1 were expected"),
        ({"class_names": np.array([b"a", b"b", b"c"])}, r"class_names: it is of type \|S1; strings were expected"),
        ({"class_names": np.array(["a", "b", "\ud800"])}, r"the class name '\\ud800' is not valid text"),
        ({"ids": np.zeros(12)}, "ids: it is of type float64; whole numbers or strings were expected"),
    ],
)
def test_a_bad_array_is_named(changes: dict[str, Any], expected: str) -> None:
    save(**changes)
    refused(f"my.npz: .*{expected}")


def test_a_label_above_the_given_classes_is_refused() -> None:
    save()
    refused("my.npz: a label is 2; labels from 0 to 1 were expected", classes=2)


def test_classes_and_class_names_must_agree() -> None:
    save(class_names=np.array(["a", "b", "c"]))
    refused("data.classes is 4, but there are 3 class names", classes=4)


@pytest.mark.parametrize("share", [0.2, 0.7, 0.95])
def test_a_truncated_file_is_refused(share: float) -> None:
    content = Path(save()).read_bytes()
    Path("my.npz").write_bytes(content[: int(len(content) * share)])
    refused("my.npz cannot be read: File is not a zip file")


@pytest.mark.filterwarnings("error")
def test_every_damaged_byte_is_refused_or_does_no_harm() -> None:
    content = Path(save()).read_bytes()
    told = []
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        Path("my.npz").write_bytes(damaged)
        try:
            np.testing.assert_array_equal(npz("my.npz").x_train, GOOD["x_train"])
        except InputError as error:
            told.append(str(error))
    assert len(told) > 50
    assert all(sentence.startswith("my.npz") and "\n" not in sentence for sentence in told)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"no array at all", "x_train cannot be read: the magic string is not correct"),
        (b"", "x_train cannot be read"),
        (npy(GOOD["x_train"])[:-4], "x_train: its header speaks of 240 bytes, but only 236 are there"),
        (header("'<f4'", "(-12, -5)"), "x_train: its shape is .*, which is empty"),
        (header("'<f4'", "(12, 'a')"), "x_train cannot be read"),
        (header("[('a', '<f4')]", "(12,)"), "x_train: it is of type .*; numbers were expected"),
        (header("__import__('os').abort()", "(12,)"), "x_train cannot be read"),
        (b"\x93NUMPY\x09\x00" + npy(GOOD["x_train"])[8:], "x_train: it is of a version"),
    ],
)
def test_a_member_that_is_no_array_is_refused(content: bytes, expected: str) -> None:
    zipped(x_train=content)
    refused(f"my.npz: {expected}")


def test_a_header_that_promises_too_much_is_refused_before_anything_is_unpacked(tmp_path: Path) -> None:
    zipped(x_train=header("'<f4'", "(12, 1000000000000)") + bytes(1000))
    refused("my.npz: x_train: its header speaks of 48000000000000 bytes, but only")


def test_a_bomb_is_refused_unless_it_is_allowed() -> None:
    zeros = np.zeros((12, 100_000), np.float32)
    save(x_train=zeros, x_test=zeros[:6])
    refused("my.npz: it has .* bytes and says that it unpacks to 7200144; more than 1000000", limit=1_000_000)
    assert npz("my.npz", limit=10_000_000).x_train.shape == zeros.shape


def test_a_gibibyte_or_a_hundredfold_is_allowed() -> None:
    Path("small").write_bytes(bytes(10))
    check_unpacked_size(Path("small"), 2**30, None)
    with pytest.raises(InputError, match=f"it has 10 bytes and says that it unpacks to {2**30 + 1}"):
        check_unpacked_size(Path("small"), 2**30 + 1, None)
    with Path("large").open("wb") as file:
        file.truncate(2**24)
    check_unpacked_size(Path("large"), 100 * 2**24, None)
    with pytest.raises(InputError, match=f"more than {100 * 2**24} are unpacked only when"):
        check_unpacked_size(Path("large"), 100 * 2**24 + 1, None)


def test_a_packing_that_is_not_known_is_refused() -> None:
    zipped()
    content = bytearray(Path("my.npz").read_bytes())
    place = content.index(b"PK\x01\x02")
    content[place + 10] = 97  # the method, in the directory
    Path("my.npz").write_bytes(content)
    refused("my.npz: x_train cannot be read")


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"data\.path is 'none\.npz', but there is no such file or folder"):
        npz("none.npz")
    with pytest.raises(InputError, match=r"data\.path is '\.', which is not a file"):
        npz(".")
    with pytest.raises(InputError, match="no such file or folder"):
        npz("long" * 5000)


def test_nothing_of_a_refused_file_stays_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    save(y_train=np.full(12, -1))
    refused("label is -1")
    assert list((tmp_path / "cache").iterdir()) == []


def test_it_is_listed() -> None:
    assert DATASETS["npz"] is npz


def test_a_test_set_is_drawn_from_a_file_without_one() -> None:
    file = save(x_test=None, y_test=None, x_train=IMAGES["x_train"], ids=np.arange(12))
    data, again, other = (npz(file, test_fraction=0.25, seed=seed) for seed in (3, 3, 4))
    assert (len(data.x_train), len(data.x_test)) == (9, 3)
    whole = IMAGES["x_train"]
    np.testing.assert_array_equal(data.x_train, whole[data.ids])  # the ids say which samples are left
    drawn = np.setdiff1d(np.arange(12), data.ids)
    np.testing.assert_array_equal(data.x_test, whole[drawn])
    np.testing.assert_array_equal(data.y_test, GOOD["y_train"][drawn])
    np.testing.assert_array_equal(data.ids, again.ids)
    assert data.ids.tolist() != other.ids.tolist()
    mean = (data.x_train / 255).mean((0, 1, 2))  # of training images alone
    np.testing.assert_allclose(data.transform.mean, mean, rtol=1e-6)


def test_a_test_set_is_not_drawn_beside_one_that_is_there() -> None:
    file = save()
    with pytest.raises(InputError, match=r"it has x_test, and data\.test_fraction is given; they exclude each other"):
        npz(file, test_fraction=0.2)
    with pytest.raises(InputError, match=r"data\.test_fraction is 1\.5; it must be above 0 and below 1"):
        npz(save(x_test=None, y_test=None), test_fraction=1.5)
