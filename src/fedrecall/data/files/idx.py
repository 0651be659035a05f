"""The four idx files of MNIST and Fashion-MNIST, plain or compressed.

An idx file of bytes begins with two zero bytes, the byte 8, the number of dimensions, and each dimension in four
bytes; the content follows.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrecall.data.cache import cached_arrays, write_rows
from fedrecall.data.places import data_folder, require
from fedrecall.errors import InputError

FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
SIDE = 28
PIECE = 1000  # images in memory at a time
IMAGES = {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}
LABELS = {"train": "train-labels-idx1-ubyte", "test": "t10k-labels-idx1-ubyte"}
IDX_FILES = [file[split] for split in IMAGES for file in (IMAGES, LABELS)]


class OtherLabelsError(InputError):
    """The file is intact but belongs to another data set."""


@dataclass(frozen=True)
class IdxFiles:
    """The files of a data set of 28 x 28 grey images, and their expected content."""

    name: str
    folders: tuple[str, ...]  # below the data root; `data fetch` fills the first
    counts: Mapping[str, tuple[int, ...]]  # the images of each class, in "train" and in "test"
    class_names: tuple[str, ...]
    mean: float
    std: float

    def locate(self, folder: str | Path | None) -> Path:
        return data_folder(self.name, folder, *self.folders, fetched=True)

    def file_names(self) -> list[str]:
        """Return every spelling of the files' names."""
        return [spelling for file in IDX_FILES for spelling in spellings(file)]

    def check(self, folder: str | Path | None = None) -> None:
        """Read every file and raise an `InputError` that names the first missing or damaged one."""
        place = self.locate(folder)
        for split in self.counts:
            for _ in self.images(place, split):
                pass
            self.labels(place, split)

    def arrays(self, folder: str | Path | None) -> dict[str, np.ndarray]:
        """Return x_train, y_train, x_test and y_test, from the cache."""
        place = self.locate(folder)
        files = [self.find(place, file) for file in IDX_FILES]

        def decode(target: Path) -> None:
            for split, counts in self.counts.items():
                images = (piece[..., None] for piece in self.images(place, split))
                write_rows(target / f"x_{split}.npy", sum(counts), images)
                np.save(target / f"y_{split}.npy", self.labels(place, split))

        return cached_arrays(self.name, files, decode)

    def images(self, place: Path, split: str) -> Iterator[np.ndarray]:
        return read_idx(self.find(place, IMAGES[split]), (sum(self.counts[split]), SIDE, SIDE))

    def labels(self, place: Path, split: str) -> np.ndarray:
        path = self.find(place, LABELS[split])
        labels = np.concatenate(list(read_idx(path, (sum(self.counts[split]),))))
        if labels.max() >= len(self.class_names):
            raise InputError(f"{path} has a label {labels.max()}, expected 0 to {len(self.class_names) - 1}.")
        # All data sets of this layout use the same file names; class counts tell them apart.
        counts = np.bincount(labels, minlength=len(self.class_names)).tolist()
        if counts != list(self.counts[split]):
            raise OtherLabelsError(f"{path} is not of {self.name}: of its classes it has {counts} images.")
        return labels.astype(np.int64)

    def find(self, place: Path, stem: str) -> Path:
        existing = (place / spelling for spelling in spellings(stem) if (place / spelling).is_file())
        return next(existing, None) or require(place / stem, fetched=self.name)


def spellings(stem: str) -> list[str]:
    dotted = stem.replace("-idx", ".idx")
    return [stem, f"{stem}.gz", dotted, f"{dotted}.gz"]


def read_idx(path: Path, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Yield the items of an idx file of this shape, some at a time.

    No more than the shape asks for is unpacked, whatever a compressed file holds.
    """
    size = math.prod(shape)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            check_header(path, file.read(4 + 4 * len(shape)), shape)
            for start in range(0, shape[0], PIECE):
                piece = (min(PIECE, shape[0] - start), *shape[1:])
                content = file.read(math.prod(piece))
                if len(content) < math.prod(piece):
                    raise InputError(f"{path} ends before {size} bytes of content; get it again.")
                yield np.frombuffer(content, np.uint8).reshape(piece)
            if file.read(1):
                raise InputError(f"{path} goes on after {size} bytes of content; get it again.")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def check_header(path: Path, header: bytes, shape: tuple[int, ...]) -> None:
    magic = bytes([0, 0, 8, len(shape)])
    if header[:4] != magic:
        raise InputError(f"{path} begins with {header[:4].hex()}, expected {magic.hex()}; get it again.")
    if len(header) < 4 + 4 * len(shape):
        raise InputError(f"{path} ends within its header; get it again.")
    if (dimensions := struct.unpack(f">{len(shape)}I", header[4:])) != shape:
        raise InputError(f"{path} has the dimensions {dimensions}, expected {shape}.")


MNIST = IdxFiles(
    name="mnist",
    folders=("mnist", "MNIST/raw"),
    counts={
        "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        "test": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    },
    class_names=tuple("0123456789"),
    mean=0.1307,
    std=0.3081,
)


FASHION_MNIST = IdxFiles(
    name="fashion_mnist",
    folders=("fashion-mnist", "FashionMNIST/raw"),
    counts={"train": (6000,) * 10, "test": (1000,) * 10},
    class_names=FASHION_CLASSES,
    mean=0.2860,
    std=0.3530,
)
