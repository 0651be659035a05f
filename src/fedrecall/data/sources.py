"""Data sets as arrays in memory: what ships with the package, and what lies unpacked on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

import numpy as np

from fedrecall.data.transform import Images, Plain
from fedrecall.errors import InputError

FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
Augment = Annotated[bool, "random crops after padding by 4, and horizontal flips"]
CIFAR_SHAPE = (3, 32, 32)
CIFAR10_RECORDS = 10_000  # in each of its files


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples, labels, and how a batch of samples becomes a model's input. Images are uint8 (N, H, W, C)."""

    name: str
    x_train: np.ndarray
    y_train: np.ndarray  # int64
    x_test: np.ndarray
    y_test: np.ndarray
    num_classes: int
    class_names: tuple[str, ...]
    transform: Images | Plain
    ids: np.ndarray | None = None  # the natural client of each training sample


def fashion_mini() -> DataSet:
    """The first 1000 training and 200 test images of each class of Fashion-MNIST, shipped with us."""
    file = resources.files("fedrecall") / "data" / "fashion_mini.npz"
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        return DataSet(
            name="fashion_mini",
            x_train=arrays["x_train"][..., None],
            y_train=arrays["y_train"].astype(np.int64),
            x_test=arrays["x_test"][..., None],
            y_test=arrays["y_test"].astype(np.int64),
            num_classes=10,
            class_names=FASHION_CLASSES,
            transform=Images(mean=(0.2867,), std=(0.3540,)),
        )


def cifar10(folder: str | Path | None = None, augment: Augment = True) -> DataSet:
    """CIFAR-10, the unpacked binary version: `folder`, or FEDRECALL_DATA, is its folder or the one above."""
    unpacked = _folder("cifar10", folder, "cifar-10-batches-bin")
    x_train, y_train = _read_cifar10([unpacked / f"data_batch_{i}.bin" for i in range(1, 6)])
    x_test, y_test = _read_cifar10([unpacked / "test_batch.bin"])
    return DataSet(
        name="cifar10",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        num_classes=10,
        class_names=_read_names(unpacked / "batches.meta.txt", expected=10),
        transform=Images(
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
            crop_padding=4 if augment else 0,
            flip=augment,
        ),
    )


def _folder(name: str, data: str | Path | None, unpacked: str) -> Path:
    """Where the data set lies: the folder `unpacked` in DIR, or DIR itself."""
    advice = f"say with --data DIR or FEDRECALL_DATA where {unpacked} is unpacked."
    given = data or os.environ.get("FEDRECALL_DATA")
    if not given:
        raise InputError(f"{name}: no folder is given; {advice}")
    root = Path(given).expanduser()
    if not root.is_dir():
        raise InputError(f"{name}: there is no folder {root}; {advice}")
    return root / unpacked if (root / unpacked).is_dir() else root


def _require(path: Path) -> None:
    if not path.is_file():
        raise InputError(
            f"{path.name} is missing in {path.parent}; unpack the data set's binary version there, "
            "or name its folder with --data DIR or FEDRECALL_DATA."
        )


def _read_names(path: Path, expected: int) -> tuple[str, ...]:
    _require(path)
    names = tuple(path.read_text(encoding="utf-8", errors="replace").split())
    if len(names) != expected:
        raise InputError(f"{path} holds {len(names)} class names, expected {expected}.")
    return names


def _read_cifar10(paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, H, W, C) and labels of files whose records are a label byte and three colour planes."""
    record = 1 + int(np.prod(CIFAR_SHAPE))
    channels, height, width = CIFAR_SHAPE
    images = np.empty((len(paths), CIFAR10_RECORDS, height, width, channels), dtype=np.uint8)
    labels = np.empty((len(paths), CIFAR10_RECORDS), dtype=np.int64)
    for i, path in enumerate(paths):
        _require(path)
        size = path.stat().st_size
        if size != CIFAR10_RECORDS * record:
            raise InputError(f"{path} has {size} bytes, expected {CIFAR10_RECORDS * record}; unpack it again.")
        records = np.fromfile(path, dtype=np.uint8).reshape(CIFAR10_RECORDS, record)
        labels[i] = records[:, 0]
        if labels[i].max() > 9:
            raise InputError(f"{path} has a label {labels[i].max()}, expected 0 to 9; unpack it again.")
        images[i] = records[:, 1:].reshape(-1, *CIFAR_SHAPE).transpose(0, 2, 3, 1)
    return images.reshape(-1, height, width, channels), labels.reshape(-1)


DATASETS: dict[str, Callable[..., DataSet]] = {"fashion_mini": fashion_mini, "cifar10": cifar10}
