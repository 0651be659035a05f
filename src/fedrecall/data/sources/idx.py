"""MNIST and Fashion-MNIST."""

from __future__ import annotations

from pathlib import Path

from fedrecall.config.titles import titled
from fedrecall.data.files.idx import FASHION_MNIST, MNIST, IdxFiles
from fedrecall.data.sources.base import DataSet
from fedrecall.data.transform import Images


@titled("MNIST")
def mnist(folder: str | Path | None = None) -> DataSet:
    """MNIST, handwritten digits: its idx files in `mnist` or `MNIST/raw` below `folder`."""
    return idx_data(MNIST, folder)


@titled("Fashion-MNIST")
def fashion_mnist(folder: str | Path | None = None) -> DataSet:
    """Fashion-MNIST, all of it: its idx files in `fashion-mnist` or `FashionMNIST/raw` below `folder`."""
    return idx_data(FASHION_MNIST, folder)


def idx_data(files: IdxFiles, folder: str | Path | None) -> DataSet:
    return DataSet(
        name=files.name,
        **files.arrays(folder),
        num_classes=len(files.class_names),
        class_names=files.class_names,
        transform=Images(mean=(files.mean,), std=(files.std,)),
    )
