"""The binary files of CIFAR-10 and CIFAR-100, their expected content, and their arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedrecall.data.cache import cached_arrays, write_rows
from fedrecall.data.places import data_folder, require
from fedrecall.errors import InputError

SHAPE = (3, 32, 32)
PIECE = 1000  # records in memory at a time


class LabelByte(NamedTuple):
    """A label byte at the beginning of a record."""

    title: str
    classes: int
    names: str  # the file with the classes' names


@dataclass(frozen=True)
class BinaryFiles:
    """A data set in the binary version: a record has its label bytes, then the red, green and blue plane."""

    name: str
    folder: str
    train: Mapping[str, int]  # the records of each file
    test: Mapping[str, int]
    labels: Mapping[str, LabelByte]  # by the name of their arrays in the cache

    @property
    def record(self) -> int:
        return len(self.labels) + int(np.prod(SHAPE))

    def locate(self, folder: str | Path | None) -> Path:
        return data_folder(self.name, folder, self.folder, fetched=True)

    def file_names(self) -> list[str]:
        return [*self.train, *self.test, *(label.names for label in self.labels.values())]

    def check(self, folder: str | Path | None = None) -> None:
        """Read every file and raise an `InputError` that names the first missing or damaged one."""
        place = self.locate(folder)
        for file, count in {**self.train, **self.test}.items():
            for _ in self.read(place / file, count):
                pass
        for name in self.labels:
            self.class_names(place, name)

    def arrays(self, folder: str | Path | None) -> dict[str, np.ndarray]:
        """Return x_train and x_test, and each label byte as NAME_train and NAME_test, from the cache."""
        place = self.locate(folder)
        files = [require(place / file, fetched=self.name) for file in (*self.train, *self.test)]

        def decode(target: Path) -> None:
            self.write(place, self.train, target, "train")
            self.write(place, self.test, target, "test")

        return cached_arrays(self.name, files, decode)

    def write(self, place: Path, files: Mapping[str, int], target: Path, split: str) -> None:
        """Write the images and labels of one split as `.npy` files below `target`."""
        labels = []

        def images() -> Iterator[np.ndarray]:
            for file, count in files.items():
                for records in self.read(place / file, count):
                    labels.append(records[:, : len(self.labels)].astype(np.int64))
                    planes = records[:, len(self.labels) :].reshape(-1, *SHAPE)
                    # Plane by plane is six times faster than one transposed copy.
                    yield np.stack([planes[:, c] for c in range(SHAPE[0])], axis=-1)

        write_rows(target / f"x_{split}.npy", sum(files.values()), images())
        for name, column in zip(self.labels, np.concatenate(labels).T):
            np.save(target / f"{name}_{split}.npy", column)

    def read(self, path: Path, count: int) -> Iterator[np.ndarray]:
        """Yield the records of a file, some at a time, after checking their labels."""
        size, expected = require(path, fetched=self.name).stat().st_size, count * self.record
        if size != expected:
            raise InputError(f"{path} has {size} bytes, expected {expected}; unpack it again.")
        try:
            with path.open("rb") as file:
                for start in range(0, count, PIECE):
                    piece = min(PIECE, count - start)
                    records = np.fromfile(file, np.uint8, piece * self.record).reshape(piece, self.record)
                    self.check_labels(path, records)
                    yield records
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None

    def check_labels(self, path: Path, records: np.ndarray) -> None:
        for column, label in enumerate(self.labels.values()):
            highest = records[:, column].max()
            if highest >= label.classes:
                raise InputError(
                    f"{path} has a {label.title} {highest}, expected 0 to {label.classes - 1}; unpack it again."
                )

    def class_names(self, place: Path, name: str) -> tuple[str, ...]:
        label = self.labels[name]
        path = require(place / label.names, fetched=self.name)
        names = tuple(path.read_text(encoding="utf-8", errors="replace").split())
        if len(names) != label.classes:
            raise InputError(f"{path} holds {len(names)} class names, expected {label.classes}.")
        return names


CIFAR10 = BinaryFiles(
    name="cifar10",
    folder="cifar-10-batches-bin",
    train={f"data_batch_{i}.bin": 10_000 for i in range(1, 6)},
    test={"test_batch.bin": 10_000},
    labels={"y": LabelByte("label", 10, "batches.meta.txt")},
)


CIFAR100 = BinaryFiles(
    name="cifar100",
    folder="cifar-100-binary",
    train={"train.bin": 50_000},
    test={"test.bin": 10_000},
    labels={
        "coarse": LabelByte("coarse label", 20, "coarse_label_names.txt"),
        "fine": LabelByte("fine label", 100, "fine_label_names.txt"),
    },
)
