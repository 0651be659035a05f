"""Columns of a Hugging Face data set as arrays, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fedrecall.data.transform import channels_last
from fedrecall.errors import InputError

BATCH = 1000  # rows in memory at a time
# The modes of Pillow that are read, and what each becomes. 16-bit and float images do not fit into bytes.
READ_AS = {"1": "L", "L": "L", "LA": "L", "P": "RGB", "RGB": "RGB", "RGBA": "RGB", "CMYK": "RGB", "YCbCr": "RGB"}


def column(rows: Any, name: str) -> np.ndarray:
    """Return a whole column."""
    values: np.ndarray = rows.select_columns([name]).with_format("numpy")[:][name]
    return values


def same_kind(pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the pieces, which must agree in the shape and type of a sample."""
    first = None
    for x in pieces:
        kind = x.shape[1:], x.dtype
        first = first or kind
        if kind != first:
            raise InputError(f"data.features: some samples are of shape {first[0]}, others of shape {kind[0]}")
        yield x


def read_samples(rows: Any, columns: Sequence[str], mode: str | None, layout: str) -> Iterator[np.ndarray]:
    """Yield the samples as they are stored, some rows at a time."""
    first = rows.features[columns[0]]
    if type(first).__name__ == "Image" and len(columns) == 1:
        for start, batch in enumerate(rows.select_columns(columns).with_format(None).iter(BATCH)):
            yield stack_images(batch[columns[0]], mode, columns[0], start * BATCH)
        return
    for batch in rows.select_columns(columns).with_format("numpy").iter(BATCH):
        for name in columns:
            if batch[name].dtype.kind not in "fiub":
                raise InputError(
                    f"data.features: column {name!r} has a value that is missing, of another length, or no number"
                )
        yield stack_numbers([batch[name] for name in columns], element_type(first), layout)


def stack_images(images: Sequence[Any], mode: str | None, name: str, start: int) -> np.ndarray:
    """Return Pillow images as uint8 (N, H, W, C)."""
    arrays: list[np.ndarray] = []
    for i, image in enumerate(images):
        if image is None or image.mode not in READ_AS:
            what = "is missing" if image is None else f"is of Pillow's mode {image.mode}, which is not read"
            raise InputError(f"data.features: image {start + i} of column {name!r} {what}")
        array = np.asarray(image.convert(mode or READ_AS[image.mode]))
        arrays.append(array if array.ndim == 3 else array[..., None])
        if arrays[-1].shape != arrays[0].shape:
            raise InputError(
                f"data.features: the images of column {name!r} differ: {arrays[0].shape} and {arrays[-1].shape} "
                f"(image {start + i}); sizes must agree, and data.mode makes the colours agree"
            )
    return np.stack(arrays)


def stack_numbers(values: Sequence[np.ndarray], dtype: str, layout: str) -> np.ndarray:
    """Return columns of numbers as vectors, or one column of arrays as it is; `dtype` is the column's type."""
    if all(x.ndim == 1 for x in values):
        x = np.stack(values, axis=1).astype(np.float32)
    elif len(values) > 1:
        raise InputError("data.features names several columns, of which one has more than a number a row")
    elif dtype == "uint8" and values[0].ndim in (3, 4):
        return channels_last(values[0].astype(np.uint8), layout)
    else:
        x = values[0].astype(np.float32 if values[0].dtype.kind == "f" else np.int64)
    if not np.isfinite(x).all():
        raise InputError("data.features has a value that is missing or not finite")
    return x


def element_type(feature: Any) -> str:
    """Return the type of the numbers in a column of lists or arrays."""
    while inner := feature[0] if isinstance(feature, list) else getattr(feature, "feature", None):
        feature = inner
    return str(getattr(feature, "dtype", ""))
