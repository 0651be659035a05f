"""CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from fedrecall.config.titles import titled
from fedrecall.data.files.cifar import CIFAR10, CIFAR100, BinaryFiles
from fedrecall.data.sources.base import DataSet
from fedrecall.data.transform import Images
from fedrecall.errors import InputError, nearest

MEAN_AND_STD = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}

Augment = Annotated[bool, "random crops after padding by 4, and horizontal flips"]
Labels = Annotated[Literal["fine", "coarse"], "fine | coarse: 100 classes, or the 20 above them"]
Normalisation = Annotated[Literal["cifar100", "cifar10"], "cifar100 | cifar10: whose means and deviations scale it"]


@titled("CIFAR-10")
def cifar10(folder: str | Path | None = None, augment: Augment = True) -> DataSet:
    """CIFAR-10, the binary version: `cifar-10-batches-bin` below `folder`."""
    return cifar_data(CIFAR10, folder, "y", augment, "cifar10")


@titled("CIFAR-100")
def cifar100(
    folder: str | Path | None = None,
    augment: Augment = True,
    labels: Labels = "fine",
    normalisation: Normalisation = "cifar100",
) -> DataSet:
    """CIFAR-100, the binary version: `cifar-100-binary` below `folder`."""
    for key, value, known in (
        ("labels", labels, CIFAR100.labels),
        ("normalisation", normalisation, MEAN_AND_STD),
    ):
        if value not in known:
            raise InputError(f"{key} is {value!r}, which is not known; {nearest(value, known)}")
    return cifar_data(CIFAR100, folder, labels, augment, normalisation)


def cifar_data(
    binary: BinaryFiles, folder: str | Path | None, labels: str, augment: bool, normalisation: str
) -> DataSet:
    arrays = binary.arrays(folder)
    mean, std = MEAN_AND_STD[normalisation]
    return DataSet(
        name=binary.name,
        x_train=arrays["x_train"],
        y_train=arrays[f"{labels}_train"],
        x_test=arrays["x_test"],
        y_test=arrays[f"{labels}_test"],
        num_classes=binary.labels[labels].classes,
        class_names=binary.class_names(binary.locate(folder), labels),
        transform=Images(mean=mean, std=std, crop_padding=4 if augment else 0, flip=augment),
    )
