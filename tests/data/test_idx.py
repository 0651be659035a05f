"""MNIST and Fashion-MNIST are read from small idx files."""

from __future__ import annotations

import gzip
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedrecall.data.files import idx as files
from fedrecall.data.sources import fashion_mnist, idx, mnist
from fedrecall.errors import InputError

COUNTS = {"train": (3, 1, 2, 1, 1, 1, 1, 1, 1, 1), "test": (1, 1, 1, 1, 1, 2, 1, 1, 1, 1)}
IMAGES = {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}
LABELS = {"train": "train-labels-idx1-ubyte", "test": "t10k-labels-idx1-ubyte"}
ALL = [*IMAGES.values(), *LABELS.values()]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with the four files of a small MNIST."""
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)
    monkeypatch.setattr(files, "PIECE", 5)  # does not divide 13 or 11
    monkeypatch.setattr(idx, "MNIST", replace(idx.MNIST, counts=COUNTS))
    monkeypatch.setattr(idx, "FASHION_MNIST", replace(idx.FASHION_MNIST, counts=COUNTS))
    random = np.random.default_rng(0)
    for split, counts in COUNTS.items():
        labels = random.permutation(np.repeat(np.arange(10), counts)).astype(np.uint8)
        pixels = random.integers(0, 256, len(labels) * 784, dtype=np.uint8)
        (tmp_path / IMAGES[split]).write_bytes(struct.pack(">4I", 2051, len(labels), 28, 28) + pixels.tobytes())
        (tmp_path / LABELS[split]).write_bytes(struct.pack(">2I", 2049, len(labels)) + labels.tobytes())
    return tmp_path


def move(folder: Path, target: str) -> None:
    (folder / target).mkdir(parents=True)
    for name in ALL:
        (folder / name).rename(folder / target / name)


def compress(path: Path) -> Path:
    compressed = path.with_name(f"{path.name}.gz")
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return compressed


def test_images_and_labels_are_the_bytes_after_the_header(folder) -> None:
    data = mnist(folder)
    assert data.x_train.shape == (13, 28, 28, 1)
    assert data.x_test.shape == (11, 28, 28, 1)
    assert data.x_train.dtype == np.uint8
    assert data.y_train.dtype == np.int64
    for split, x, y in [("train", data.x_train, data.y_train), ("test", data.x_test, data.y_test)]:
        images, labels = ((folder / names[split]).read_bytes() for names in (IMAGES, LABELS))
        assert y.tolist() == list(labels[8:])
        assert x.tobytes() == images[16:]
        assert x[9, 3, 4, 0] == images[16 + 9 * 784 + 3 * 28 + 4]


def test_arrays_are_maps_of_the_cache(folder) -> None:
    assert isinstance(mnist(folder).x_train, np.memmap)


def test_nothing_is_augmented(folder) -> None:
    for load in (mnist, fashion_mnist):
        assert (load(folder).transform.crop_padding, load(folder).transform.flip) == (0, False)


def test_classes_are_digits_and_clothes(folder) -> None:
    assert mnist(folder).class_names == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
    assert fashion_mnist(folder).class_names[9] == "Ankle boot"
    assert mnist(folder).num_classes == fashion_mnist(folder).num_classes == 10


@pytest.mark.parametrize(
    ("load", "below"),
    [
        (mnist, "mnist"),
        (mnist, "MNIST/raw"),
        (fashion_mnist, "fashion-mnist"),
        (fashion_mnist, "FashionMNIST/raw"),
    ],
)
def test_the_usual_folders_are_found_below_the_given_one(folder, load, below) -> None:
    move(folder, below)
    assert len(load(folder).x_train) == 13


def test_the_folder_may_come_from_the_environment(folder, monkeypatch) -> None:
    monkeypatch.setenv("FEDRECALL_DATA", str(folder))
    assert len(mnist().x_train) == 13


def test_one_data_set_is_not_taken_for_the_other(folder, monkeypatch) -> None:
    others = {"train": COUNTS["train"], "test": COUNTS["test"][::-1]}
    monkeypatch.setattr(idx, "FASHION_MNIST", replace(idx.FASHION_MNIST, counts=others))
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte is not of fashion_mnist"):
        fashion_mnist(folder)


@pytest.mark.parametrize("spelling", ["{}.gz", "dotted", "dotted.gz"])
def test_other_spellings_and_compressed_files_are_read_alike(folder, spelling) -> None:
    expected = mnist(folder).x_train.tobytes()
    for name in ALL:
        path = folder / name
        if "dotted" in spelling:
            path = path.rename(folder / name.replace("-idx", ".idx"))
        if spelling.endswith(".gz"):
            compress(path)
    assert not any((folder / name).exists() for name in ALL)
    assert mnist(folder).x_train.tobytes() == expected


@pytest.mark.parametrize("name", ALL)
def test_a_missing_file_is_named_with_the_command_that_downloads_it(folder, name) -> None:
    (folder / name).unlink()
    with pytest.raises(InputError, match=rf"^{name} is missing in .*`fedrecall data fetch mnist`"):
        mnist(folder)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_a_file_that_is_too_short_or_too_long_is_named(folder, name, compressed) -> None:
    raw = (folder / name).read_bytes()
    for content, complaint in ((raw[:-1], "ends before"), (raw + b"\0", "goes on after"), (raw[:7], "header")):
        (folder / name).write_bytes(content)
        path = compress(folder / name) if compressed else folder / name
        with pytest.raises(InputError, match=rf"{path.name}.* {complaint}"):
            mnist(folder)
        path.unlink()


@pytest.mark.parametrize("name", ALL)
def test_another_magic_number_is_refused(folder, name) -> None:
    path = folder / name
    right = path.read_bytes()
    path.write_bytes(right[:2] + b"\x09" + right[3:])  # signed bytes
    expected = "00000803" if "images" in name else "00000801"
    with pytest.raises(InputError, match=rf"{name} begins with 000009.*, expected {expected}"):
        mnist(folder)


def test_images_and_labels_are_not_confused(folder) -> None:
    (folder / LABELS["train"]).write_bytes((folder / IMAGES["train"]).read_bytes())
    with pytest.raises(InputError, match=r"train-labels.* begins with 00000803, expected 00000801"):
        mnist(folder)


@pytest.mark.parametrize("place", [4, 8, 12])
def test_other_dimensions_are_refused(folder, place) -> None:
    path = folder / IMAGES["train"]
    raw = bytearray(path.read_bytes())
    raw[place + 3] += 1
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"train-images.* has the dimensions .*, expected \(13, 28, 28\)"):
        mnist(folder)


def test_the_official_dimensions_are_expected(folder, monkeypatch) -> None:
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"dimensions \(13, 28, 28\), expected \(60000, 28, 28\)"):
        mnist(folder)


def test_a_label_above_9_is_refused_with_its_file(folder) -> None:
    path = folder / LABELS["test"]
    path.write_bytes(path.read_bytes()[:-1] + b"\x0a")
    with pytest.raises(InputError, match=r"t10k-labels.* has a label 10, expected 0 to 9"):
        mnist(folder)


@pytest.mark.parametrize("damage", ["cut", "flipped", "plain"])
def test_a_damaged_compressed_file_is_named(folder, damage) -> None:
    plain = (folder / IMAGES["train"]).read_bytes()
    path = compress(folder / IMAGES["train"])
    raw = path.read_bytes()
    flipped = raw[:-6] + bytes([raw[-6] ^ 1]) + raw[-5:]  # in the checksum
    path.write_bytes({"cut": raw[: len(raw) // 2], "flipped": flipped, "plain": plain}[damage])
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz cannot be read: "):
        mnist(folder)


def test_a_file_without_permission_is_named(folder, monkeypatch) -> None:
    opened = Path.open

    def forbidden(path: Path, *words: str, **options: int):
        if path.name == "train-labels-idx1-ubyte":
            raise PermissionError(13, "Permission denied")
        return opened(path, *words, **options)

    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(InputError, match=r"train-labels-idx1-ubyte cannot be read: Permission denied"):
        mnist(folder)


def test_the_second_time_nothing_is_decoded(folder, monkeypatch) -> None:
    mnist(folder)
    monkeypatch.setattr(files, "read_idx", None)
    assert len(mnist(folder).x_train) == 13
