"""Read torch's map-style data sets into arrays."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from PIL import Image

from fedrecall.data.arrays import CheckedPair, as_array
from fedrecall.errors import InputError, short_repr


def names_of_classes(dataset: Any) -> tuple[str, ...]:
    """Return the names that a data set, or the one below a `Subset`, has as `classes` (torchvision's habit)."""
    while not hasattr(dataset, "classes") and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", ())
    known = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if known else ()


def read_dataset(dataset: Any, what: str) -> tuple[CheckedPair, bool]:
    """Read every item once; return samples and labels, and whether PIL images are among the samples."""
    if not hasattr(dataset, "__len__"):
        raise InputError(f"the {what} data have no length; a map-style Dataset was expected")
    x, y, pictures = np.empty(0), np.empty(len(dataset), np.int64), False
    for i in range(len(dataset)):
        item = dataset[i]
        try:
            sample, y[i] = item[0], operator.index(item[1])
        except (TypeError, LookupError, OverflowError):
            raise InputError(
                f"{what} item {i} is {short_repr(item)}; a sample and a whole number were expected"
            ) from None
        if isinstance(sample, Image.Image):
            sample = sample if sample.mode in ("L", "RGB") else sample.convert("RGB")
            pictures = True
        sample = as_array(sample, f"{what} samples")
        if i == 0:
            x = np.empty((len(dataset), *sample.shape), sample.dtype)
        if (sample.shape, sample.dtype) != (x.shape[1:], x.dtype):
            this, first = (f"{part.dtype} {part.shape}" for part in (sample, x[0]))
            raise InputError(f"{what} sample {i} is {this}, but the first is {first}")
        x[i] = sample
    return (x, y), pictures
