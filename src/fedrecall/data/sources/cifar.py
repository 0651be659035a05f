"""CIFAR-10, from its unpacked binary files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.lib.format import open_memmap

from fedrecall.data.cache import decoded
from fedrecall.data.sources.base import DataSet, data_folder, require
from fedrecall.data.transform import Images
from fedrecall.errors import InputError

SHAPE = (3, 32, 32)
RECORDS = 10_000  # in each file of CIFAR-10

Augment = Annotated[bool, "random crops after padding by 4, and horizontal flips"]


def cifar10(folder: str | Path | None = None, augment: Augment = True) -> DataSet:
    """CIFAR-10, the binary version: `cifar-10-batches-bin` below `folder`."""
    unpacked = data_folder("cifar10", folder, "cifar-10-batches-bin")
    train = [require(unpacked / f"data_batch_{i}.bin") for i in range(1, 6)]
    test = [require(unpacked / "test_batch.bin")]

    def decode(target: Path) -> None:
        write_records(train, target, "train")
        write_records(test, target, "test")

    return DataSet(
        name="cifar10",
        **decoded("cifar10", train + test, decode),
        num_classes=10,
        class_names=read_names(unpacked / "batches.meta.txt", expected=10),
        transform=Images(
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
            crop_padding=4 if augment else 0,
            flip=augment,
        ),
    )


def read_names(path: Path, expected: int) -> tuple[str, ...]:
    names = tuple(require(path).read_text(encoding="utf-8", errors="replace").split())
    if len(names) != expected:
        raise InputError(f"{path} holds {len(names)} class names, expected {expected}.")
    return names


def write_records(paths: list[Path], target: Path, split: str) -> None:
    """Images (N, H, W, C) and labels of files whose records are a label byte and three colour planes.

    File after file, so that only one is in memory at a time.
    """
    channels, height, width = SHAPE
    total = len(paths) * RECORDS
    images = open_memmap(target / f"x_{split}.npy", "w+", np.uint8, (total, height, width, channels))
    labels = open_memmap(target / f"y_{split}.npy", "w+", np.int64, (total,))
    for i, path in enumerate(paths):
        part = slice(i * RECORDS, (i + 1) * RECORDS)
        records = read_records(path)
        labels[part] = records[:, 0]
        if labels[part].max() > 9:
            raise InputError(f"{path} has a label {labels[part].max()}, expected 0 to 9; unpack it again.")
        images[part] = records[:, 1:].reshape(-1, *SHAPE).transpose(0, 2, 3, 1)


def read_records(path: Path) -> np.ndarray:
    record = 1 + int(np.prod(SHAPE))
    size = path.stat().st_size
    if size != RECORDS * record:
        raise InputError(f"{path} has {size} bytes, expected {RECORDS * record}; unpack it again.")
    return np.fromfile(path, dtype=np.uint8).reshape(RECORDS, record)
