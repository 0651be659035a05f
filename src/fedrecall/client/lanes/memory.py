"""Memory that kernels work in."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrecall.client.lanes.chain import UnsupportedError
from fedrecall.client.lanes.ir import FLOAT, UNIT
from fedrecall.client.lanes.program import Program

MOST_BYTES = 2**30


def scratch(program: Program) -> Tensor:
    """What a program works in."""
    if program.scratch_bytes > MOST_BYTES:
        raise UnsupportedError(f"batches whose activations take {program.scratch_bytes / 2**30:.1f} GiB")
    return zeros(program.scratch_bytes // FLOAT)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return empty(*shape, dtype=dtype).zero_()


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor that begins on the boundary of a unit, as kernels expect it."""
    size = torch.Size(shape).numel()
    room = torch.empty(size + UNIT // dtype.itemsize, dtype=dtype)
    start = -room.data_ptr() % UNIT // dtype.itemsize
    return room[start : start + size].view(shape)
