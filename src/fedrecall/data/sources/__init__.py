"""The data sets, by name. A new one is a file here and a line in this list."""

from __future__ import annotations

from collections.abc import Callable

from fedrecall.data.sources.base import DataSet
from fedrecall.data.sources.cifar import cifar10
from fedrecall.data.sources.fashion_mini import fashion_mini

DATASETS: dict[str, Callable[..., DataSet]] = {
    "fashion_mini": fashion_mini,
    "cifar10": cifar10,
}

__all__ = ["DATASETS", "DataSet", "cifar10", "fashion_mini"]
