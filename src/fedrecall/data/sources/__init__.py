"""The data sets by name. A new one is a module here and a line in this list."""

from __future__ import annotations

from collections.abc import Callable

from fedrecall.config.components import Section
from fedrecall.data.sources.base import DataSet
from fedrecall.data.sources.cifar import cifar10, cifar100
from fedrecall.data.sources.fashion_mini import fashion_mini
from fedrecall.data.sources.femnist import femnist
from fedrecall.data.sources.huggingface import hf
from fedrecall.data.sources.idx import fashion_mnist, mnist
from fedrecall.data.sources.image_folder import image_folder
from fedrecall.data.sources.npz import npz
from fedrecall.data.sources.tables import csv, parquet

DATASETS: dict[str, Callable[..., DataSet]] = {
    "fashion_mini": fashion_mini,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "femnist": femnist,
    "hf": hf,
    "npz": npz,
    "image_folder": image_folder,
    "csv": csv,
    "parquet": parquet,
}

DATA: Section[DataSet] = Section("data", DATASETS, supplied=frozenset({"folder"}))

__all__ = [
    "DATA",
    "DATASETS",
    "DataSet",
    "cifar10",
    "cifar100",
    "csv",
    "fashion_mini",
    "fashion_mnist",
    "femnist",
    "hf",
    "image_folder",
    "mnist",
    "npz",
    "parquet",
]
