"""Tensors as bytes in a message, checked on arrival: names, types, shapes, sizes, values."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from flwr.app import Array, ArrayRecord

from fedrecall.core.vector import Tensors
from fedrecall.errors import InputError
from fedrecall.flower.refusal import RefusedError

MOST_HEADER = 1024  # limit of the bytes before an array's values in NumPy's format
ENCODING = "numpy.ndarray"  # Flower's name for that format, which its mods read too

Layout = dict[str, tuple[str, tuple[int, ...]]]  # type and shape of each tensor, by name


def layout_of(tensors: Tensors) -> Layout:
    return {name: (dtype_name(tensor), tuple(tensor.shape)) for name, tensor in tensors.items()}


def dtype_name(tensor: torch.Tensor) -> str:
    """Return NumPy's name of the tensor's dtype."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name == "bfloat16":
        raise InputError("the model is bfloat16, which Flower's messages do not have; convert it by model.float()")
    return name


def pack_record(tensors: Tensors) -> ArrayRecord:
    """Return the tensors as a record, in the order of their names, which is the same both ways."""
    named = sorted(tensors.items())
    return ArrayRecord({name: Array(tensor.detach().contiguous().numpy()) for name, tensor in named})


def unpack_record(record: ArrayRecord, layout: Layout, *, finite: bool = True) -> Tensors:
    """Return a record's tensors; raise a `RefusedError` if they do not fit the layout. Sizes are checked first."""
    if set(record) != set(layout):
        raise RefusedError(f"it has the tensors {names_text(record)}; {names_text(layout)} were expected")
    return {name: decoded(name, record[name], *layout[name], finite=finite) for name in layout}


def decoded(name: str, array: Array, dtype: str, shape: tuple[int, ...], *, finite: bool) -> torch.Tensor:
    if (array.stype, array.dtype, tuple(array.shape)) != (ENCODING, dtype, shape):
        what = f"{array.stype[:40]} of {array.dtype[:40]} and shape {str(tuple(array.shape))[:80]}"
        raise RefusedError(f"its tensor {name!r} is a {what}; {ENCODING} of {dtype} and shape {shape} was expected")
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if not size <= len(array.data) <= size + MOST_HEADER:
        raise RefusedError(f"its tensor {name!r} has {len(array.data)} bytes; {size} and a header were expected")
    try:
        values = array.numpy()  # never reads pickles
    except Exception:  # NumPy raises all kinds of errors for bytes that are no array
        raise RefusedError(f"its tensor {name!r} is not an array of numbers") from None
    if not isinstance(values, np.ndarray) or (str(values.dtype), values.shape) != (dtype, shape):
        raise RefusedError(f"its tensor {name!r} is another array than was said")
    if finite and values.dtype.kind == "f" and not np.isfinite(values).all():
        raise RefusedError(f"its tensor {name!r} has values that are not finite")
    return torch.from_numpy(np.array(values, order="C"))


def names_text(names: Iterable[str]) -> str:
    shown = [repr(name)[:40] for name in sorted(names)]
    return ", ".join(shown[:8] + ["more"] * (len(shown) > 8)) or "none"
