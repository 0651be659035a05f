"""Memory that kernels work in: torch's, which begins on a boundary of 64 bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrecall.client.lanes.chain import UnsupportedError
from fedrecall.client.lanes.kernels.ir import FLOAT
from fedrecall.client.lanes.kernels.program import Program

MOST_BYTES = 2**30


def scratch(program: Program) -> Tensor:
    """What a program works in."""
    if program.scratch_bytes > MOST_BYTES:
        raise UnsupportedError(f"batches whose activations take {program.scratch_bytes / 2**30:.1f} GiB")
    return torch.zeros(program.scratch_bytes // FLOAT)
