"""CIFAR is read from small files of the official layout; the real ones are read when they are there."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from memory import measurable, printed_by

from fedrecall.data.files import cifar as binary_files
from fedrecall.data.sources import cifar, cifar10, cifar100
from fedrecall.errors import InputError

RECORDS = 20
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FILES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
# Per data set: its folder, its files with the records in our small ones, and the bytes of labels in a record.
SMALL = {
    "cifar10": ("cifar-10-batches-bin", dict.fromkeys(FILES, RECORDS), [10]),
    "cifar100": ("cifar-100-binary", {"train.bin": 2 * RECORDS, "test.bin": RECORDS}, [20, 100]),
}
LOADERS = {"cifar10": cifar10, "cifar100": cifar100}


@pytest.fixture
def unpacked(tmp_path, monkeypatch) -> Path:
    """The folder above both data sets, their files shortened to a few records of random bytes."""
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)
    monkeypatch.setattr(binary_files, "PIECE", 7)  # does not divide the records
    random = np.random.default_rng(0)
    for name, (folder, files, classes) in SMALL.items():
        (tmp_path / folder).mkdir()
        for file, count in files.items():
            records = random.integers(0, 256, (count, len(classes) + 3072), dtype=np.uint8)
            records[:, : len(classes)] %= np.array(classes, dtype=np.uint8)
            records.tofile(tmp_path / folder / file)
        official = getattr(cifar, name.upper())
        small = {split: {file: files[file] for file in getattr(official, split)} for split in ("train", "test")}
        monkeypatch.setattr(cifar, name.upper(), replace(official, **small))
    (tmp_path / "cifar-10-batches-bin" / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")
    for kind, count in {"fine": 100, "coarse": 20}.items():
        names = "".join(f"{kind}_{i}\n" for i in range(count))
        (tmp_path / "cifar-100-binary" / f"{kind}_label_names.txt").write_text(names)
    return tmp_path


def byte(folder: Path, name: str, file: str, record: int, place: int) -> int:
    """One byte at the place in a record that the format's description gives."""
    inner, _, classes = SMALL[name]
    return (folder / inner / file).read_bytes()[record * (len(classes) + 3072) + place]


def pixel(folder: Path, name: str, file: str, record: int, row: int, column: int, channel: int) -> int:
    """Labels, then red, green and blue by rows."""
    return byte(folder, name, file, record, len(SMALL[name][2]) + channel * 1024 + row * 32 + column)


def change(folder: Path, name: str, file: str, place: int, value: int) -> None:
    path = folder / SMALL[name][0] / file
    raw = bytearray(path.read_bytes())
    raw[place] = value
    path.write_bytes(raw)


def test_planar_records_become_channels_last_images_in_file_order(unpacked) -> None:
    data = cifar10(unpacked)
    assert data.x_train.shape == (5 * RECORDS, 32, 32, 3)
    assert data.x_test.shape == (RECORDS, 32, 32, 3)
    assert data.x_train.dtype == data.x_test.dtype == np.uint8
    for batch, record, row, column, channel in [(1, 0, 0, 0, 0), (2, 3, 1, 2, 1), (5, 19, 31, 30, 2)]:
        found = data.x_train[(batch - 1) * RECORDS + record, row, column, channel]
        assert found == pixel(unpacked, "cifar10", f"data_batch_{batch}.bin", record, row, column, channel)
    assert data.x_test[7, 5, 6, 2] == pixel(unpacked, "cifar10", "test_batch.bin", 7, 5, 6, 2)


def test_images_of_cifar100_follow_two_label_bytes(unpacked) -> None:
    data = cifar100(unpacked)
    assert data.x_train.shape == (2 * RECORDS, 32, 32, 3)
    for record, row, column, channel in [(0, 0, 0, 0), (8, 1, 2, 1), (39, 31, 31, 2)]:
        found = data.x_train[record, row, column, channel]
        assert found == pixel(unpacked, "cifar100", "train.bin", record, row, column, channel)
    assert data.x_test[7, 5, 6, 2] == pixel(unpacked, "cifar100", "test.bin", 7, 5, 6, 2)


def test_labels_are_int64_in_file_order(unpacked) -> None:
    data = cifar10(unpacked)
    assert data.y_train.dtype == data.y_test.dtype == np.int64
    assert data.y_train.tolist() == [
        byte(unpacked, "cifar10", file, i, 0) for file in FILES[:5] for i in range(RECORDS)
    ]
    assert data.y_test.tolist() == [byte(unpacked, "cifar10", "test_batch.bin", i, 0) for i in range(RECORDS)]


@pytest.mark.parametrize(("labels", "place", "classes"), [("coarse", 0, 20), ("fine", 1, 100)])
def test_cifar100_has_coarse_labels_first_and_fine_ones_second(unpacked, labels, place, classes) -> None:
    data = cifar100(unpacked, labels=labels)
    assert data.num_classes == classes
    assert data.class_names == tuple(f"{labels}_{i}" for i in range(classes))
    assert data.y_train.dtype == np.int64
    assert data.y_train.flags.c_contiguous
    assert data.y_train.tolist() == [byte(unpacked, "cifar100", "train.bin", i, place) for i in range(2 * RECORDS)]
    assert data.y_test.tolist() == [byte(unpacked, "cifar100", "test.bin", i, place) for i in range(RECORDS)]


def test_the_fine_labels_are_the_default(unpacked) -> None:
    assert cifar100(unpacked).num_classes == 100


def test_images_are_contiguous_maps_of_the_cache(unpacked) -> None:
    for load in LOADERS.values():
        images = load(unpacked).x_train
        assert images.flags.c_contiguous
        assert isinstance(images, np.memmap)


def test_class_names_come_from_the_folder(unpacked) -> None:
    data = cifar10(unpacked)
    assert data.class_names == tuple(NAMES)
    assert data.num_classes == 10


def test_the_folder_itself_may_be_given_as_a_string(unpacked) -> None:
    inner = cifar10(str(unpacked / "cifar-10-batches-bin"))
    np.testing.assert_array_equal(inner.x_train, cifar10(unpacked).x_train)


def test_the_folder_may_come_from_the_environment(unpacked, monkeypatch) -> None:
    monkeypatch.setenv("FEDRECALL_DATA", str(unpacked))
    assert len(cifar10().x_train) == 5 * RECORDS


def test_the_argument_goes_before_the_environment(unpacked, monkeypatch) -> None:
    monkeypatch.setenv("FEDRECALL_DATA", "/nowhere")
    assert len(cifar10(unpacked).x_train) == 5 * RECORDS


@pytest.mark.parametrize("load", LOADERS.values())
def test_augmentation_is_crop_and_flip_and_can_be_left_out(unpacked, load) -> None:
    augmented, plain = load(unpacked).transform, load(unpacked, augment=False).transform
    assert (augmented.crop_padding, augmented.flip) == (4, True)
    assert (plain.crop_padding, plain.flip) == (0, False)
    assert (augmented.mean, augmented.std) == (plain.mean, plain.std)


def test_cifar100_may_be_normalised_as_cifar10(unpacked) -> None:
    of_ten, own = cifar10(unpacked).transform, cifar100(unpacked).transform
    assert own.mean != of_ten.mean
    assert own.std != of_ten.std
    assert cifar100(unpacked, normalisation="cifar10").transform == of_ten


def test_an_unknown_choice_gets_the_nearest_right_one(unpacked) -> None:
    with pytest.raises(InputError, match=r"labels is 'coarser'.*did you mean 'coarse'\?"):
        cifar100(unpacked, labels="coarser")
    with pytest.raises(InputError, match="normalisation is 'cifar1'"):
        cifar100(unpacked, normalisation="cifar1")


@pytest.mark.parametrize("name", LOADERS)
def test_data_that_are_not_here_get_the_command_that_downloads_them(tmp_path, monkeypatch, name) -> None:
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    advice = rf"`fedrecall data fetch {name}`.*--data DIR or FEDRECALL_DATA"
    with pytest.raises(InputError, match=rf"^{name}: no folder is given.*{advice}.*{SMALL[name][0]}"):
        LOADERS[name]()
    with pytest.raises(InputError, match=rf"no folder .*absent.*{advice}"):
        LOADERS[name](tmp_path / "absent")
    with pytest.raises(InputError, match=rf"is missing in {tmp_path};.*{advice}"):
        LOADERS[name](tmp_path)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        *(("cifar10", file) for file in [*FILES, "batches.meta.txt"]),
        *(("cifar100", file) for file in ["train.bin", "test.bin", "fine_label_names.txt"]),
    ],
)
def test_a_missing_file_is_named_with_its_folder(unpacked, name, file) -> None:
    (unpacked / SMALL[name][0] / file).unlink()
    with pytest.raises(InputError, match=rf"{file} is missing in .*{SMALL[name][0]}.*FEDRECALL_DATA"):
        LOADERS[name](unpacked)


@pytest.mark.parametrize(
    ("name", "file", "size"),
    [
        ("cifar10", "data_batch_3.bin", 20 * 3073),
        ("cifar10", "test_batch.bin", 20 * 3073),
        ("cifar100", "train.bin", 40 * 3074),
        ("cifar100", "test.bin", 20 * 3074),
    ],
)
@pytest.mark.parametrize("difference", [-1, 1])
def test_a_file_of_the_wrong_size_is_named(unpacked, name, file, size, difference) -> None:
    path = unpacked / SMALL[name][0] / file
    path.write_bytes((path.read_bytes() + b"\0")[: size + difference])
    with pytest.raises(InputError, match=rf"{file} has {size + difference} bytes, expected {size}"):
        LOADERS[name](unpacked)


@pytest.mark.parametrize(
    ("name", "file", "has", "expected"),
    [("cifar10", "data_batch_1.bin", 20 * 3073, 30730000), ("cifar100", "train.bin", 40 * 3074, 153700000)],
)
def test_the_official_size_is_expected(unpacked, monkeypatch, name, file, has, expected) -> None:
    monkeypatch.undo()
    with pytest.raises(InputError, match=rf"{file} has {has} bytes, expected {expected}"):
        LOADERS[name](unpacked)


@pytest.mark.parametrize(
    ("name", "file", "place", "value", "complaint"),
    [
        ("cifar10", "data_batch_4.bin", 19 * 3073, 10, "has a label 10, expected 0 to 9"),
        ("cifar100", "train.bin", 9 * 3074, 20, "has a coarse label 20, expected 0 to 19"),
        ("cifar100", "test.bin", 9 * 3074 + 1, 100, "has a fine label 100, expected 0 to 99"),
    ],
)
def test_a_label_out_of_range_is_refused_with_its_file(unpacked, name, file, place, value, complaint) -> None:
    change(unpacked, name, file, place, value - 1)
    LOADERS[name](unpacked)
    change(unpacked, name, file, place, value)
    with pytest.raises(InputError, match=rf"{file} {complaint}"):
        LOADERS[name](unpacked)


def test_a_file_without_permission_is_named(unpacked, monkeypatch) -> None:
    opened = Path.open

    def forbidden(path: Path, *words: str, **options: int):
        if path.name == "data_batch_2.bin":
            raise PermissionError(13, "Permission denied")
        return opened(path, *words, **options)

    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(InputError, match=r"data_batch_2\.bin cannot be read: Permission denied"):
        cifar10(unpacked)


def test_a_wrong_number_of_class_names_is_refused(unpacked) -> None:
    (unpacked / "cifar-10-batches-bin" / "batches.meta.txt").write_text("cat\ndog\n")
    with pytest.raises(InputError, match=r"batches\.meta\.txt holds 2 class names, expected 10"):
        cifar10(unpacked)


def real(folder: str) -> pytest.MarkDecorator:
    here = Path(os.environ.get("FEDRECALL_DATA", ""), folder).is_dir()
    return pytest.mark.skipif(not here, reason=f"FEDRECALL_DATA has no folder {folder}")


def check_statistics(data) -> None:
    for c in range(3):
        channel = data.x_train[..., c] / 255
        assert round(channel.mean(), 4) == data.transform.mean[c]
        assert round(channel.std(), 4) == data.transform.std[c]


@pytest.mark.real_data
@real("cifar-10-batches-bin")
def test_the_real_cifar10_has_its_known_counts_and_statistics() -> None:
    data = cifar10()
    assert data.x_train.shape == (50_000, 32, 32, 3)
    assert data.x_test.shape == (10_000, 32, 32, 3)
    assert np.bincount(data.y_train).tolist() == [5000] * 10
    assert np.bincount(data.y_test).tolist() == [1000] * 10
    assert data.class_names == tuple(NAMES)
    check_statistics(data)


@pytest.mark.real_data
@real("cifar-100-binary")
def test_the_real_cifar100_has_its_known_counts_and_statistics() -> None:
    fine, coarse = cifar100(), cifar100(labels="coarse")
    assert fine.x_train.shape == (50_000, 32, 32, 3)
    assert np.bincount(fine.y_train).tolist() == [500] * 100
    assert np.bincount(fine.y_test).tolist() == [100] * 100
    assert np.bincount(coarse.y_train).tolist() == [2500] * 20
    assert (fine.class_names[0], fine.class_names[99], coarse.class_names[0]) == (
        "apple",
        "worm",
        "aquatic_mammals",
    )
    pairs = set(zip(fine.y_train.tolist(), coarse.y_train.tolist()))
    assert len(pairs) == 100  # a fine class lies within one coarse class
    check_statistics(fine)


READING = """
from fedrecall.data.sources import cifar10
before = peak()
data = cifar10()
data.x_train.sum(), data.x_test.sum()
print((peak() - before) / (data.x_train.nbytes + data.x_test.nbytes))
"""


@pytest.mark.real_data
@measurable
@real("cifar-10-batches-bin")
def test_memory_stays_below_twice_the_images_while_decoding_and_reading_all(tmp_path) -> None:
    environment = {**os.environ, "FEDRECALL_CACHE": str(tmp_path)}
    assert 0.5 < float(printed_by(READING, environment=environment)) < 2


@pytest.mark.real_data
@real("cifar-10-batches-bin")
def test_the_second_time_cifar10_loads_within_two_seconds() -> None:
    cifar10()
    began = time.perf_counter()
    cifar10()
    assert time.perf_counter() - began < 2
