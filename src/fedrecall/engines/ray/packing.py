"""Tensors as Ray objects: one byte array, which Ray stores once per node and maps into its processes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from fedrecall.core.vector import Tensors
from fedrecall.engines.tensor_layout import TensorLayout, plan_layout, tensor_views, write_tensors

Packed = tuple[TensorLayout, np.ndarray]


def pack_tensors(tensors: Mapping[str, Tensor | list[Tensor]]) -> Packed:
    """Copy all tensors into one array; a list of tensors is stored as its stack."""
    layout, size = plan_layout(tensors)
    memory = np.empty(size, np.uint8)
    write_tensors(memory, tensors, layout)
    return layout, memory


def unpack_tensors(packed: Packed) -> Tensors:
    """Return the tensors as views, which must not be written to: other processes may share the memory."""
    layout, memory = packed
    with warnings.catch_warnings():  # torch has no read-only tensors
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return tensor_views(memory, layout)


def unpack_copy(packed: Packed) -> Tensors:
    """Return writable copies of the tensors."""
    return {name: tensor.clone() for name, tensor in unpack_tensors(packed).items()}
