"""Named tensors one after the other in a piece of memory: how vectors go from one process of a run to another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedrecall.vector import ALIGNMENT, Tensors

Place = tuple[str, torch.dtype, tuple[int, ...], int]  # name, dtype, shape, offset
Places = tuple[Place, ...]


def lay_out(tensors: Mapping[str, Tensor | list[Tensor]]) -> tuple[Places, int]:
    """Where each of them goes, a list as its stack, and how many bytes they take together."""
    places, end = [], 0
    for name, given in tensors.items():
        first, leading = (given, ()) if isinstance(given, Tensor) else (given[0], (len(given),))
        shape = (*leading, *first.shape)
        places.append((name, first.dtype, shape, end))
        end += -(-math.prod(shape) * first.element_size() // ALIGNMENT) * ALIGNMENT
    return tuple(places), end


def fill(memory: Any, tensors: Mapping[str, Tensor | list[Tensor]], places: Places) -> None:
    """Copy the tensors to their places in a writable buffer."""
    for name, dtype, shape, offset in places:
        given, there = tensors[name], view(memory, dtype, shape, offset)
        if isinstance(given, Tensor):
            there.copy_(given)
        else:
            torch.stack(given, out=there)


def views(memory: Any, places: Places) -> Tensors:
    """The tensors, in the memory itself."""
    return {name: view(memory, dtype, shape, offset) for name, dtype, shape, offset in places}


def view(memory: Any, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> Tensor:
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)
