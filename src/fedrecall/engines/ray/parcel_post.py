"""Tensors as Ray objects: one array of bytes, which Ray keeps once on each node and maps into its processes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from fedrecall.engines.layout import Places, fill, lay_out, views
from fedrecall.vector import Tensors

Packed = tuple[Places, np.ndarray]


def pack(tensors: Mapping[str, Tensor | list[Tensor]]) -> Packed:
    """Each as it is; a list of tensors as their stack."""
    places, size = lay_out(tensors)
    memory = np.empty(size, np.uint8)
    fill(memory, tensors, places)
    return places, memory


def unpack(packed: Packed) -> Tensors:
    """The tensors, perhaps in memory that others share: nobody may write to them."""
    places, memory = packed
    with warnings.catch_warnings():  # torch has no tensors that cannot be written to
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return views(memory, places)


def unpack_copy(packed: Packed) -> Tensors:
    """The tensors, in memory of their own."""
    return {name: tensor.clone() for name, tensor in unpack(packed).items()}
