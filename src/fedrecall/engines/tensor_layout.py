"""Named tensors one after the other in a buffer, for transfer between the processes of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedrecall.core.vector import ALIGNMENT, Tensors

TensorPlace = tuple[str, torch.dtype, tuple[int, ...], int]  # name, dtype, shape, offset in bytes
TensorLayout = tuple[TensorPlace, ...]


def plan_layout(tensors: Mapping[str, Tensor | list[Tensor]]) -> tuple[TensorLayout, int]:
    """Return the place of each tensor, or of each list as its stack, and the bytes needed for all."""
    places, end = [], 0
    for name, given in tensors.items():
        first, leading = (given, ()) if isinstance(given, Tensor) else (given[0], (len(given),))
        shape = (*leading, *first.shape)
        places.append((name, first.dtype, shape, end))
        end += -(-math.prod(shape) * first.element_size() // ALIGNMENT) * ALIGNMENT
    return tuple(places), end


def write_tensors(memory: Any, tensors: Mapping[str, Tensor | list[Tensor]], layout: TensorLayout) -> None:
    """Copy the tensors to their places in a writable buffer."""
    for name, dtype, shape, offset in layout:
        source, target = tensors[name], tensor_view(memory, dtype, shape, offset)
        if isinstance(source, Tensor):
            target.copy_(source)
        else:
            torch.stack(source, out=target)


def tensor_views(memory: Any, layout: TensorLayout) -> Tensors:
    """Return the tensors as views into the buffer."""
    return {name: tensor_view(memory, dtype, shape, offset) for name, dtype, shape, offset in layout}


def tensor_view(memory: Any, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> Tensor:
    """Return one tensor as a view into the buffer; an empty tensor needs no memory."""
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)
