"""Working memory of kernels, allocated by torch, which aligns it to 64 bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrecall.client.lanes.kernels.ir import FLOAT
from fedrecall.client.lanes.kernels.program import Program
from fedrecall.client.lanes.model_reader import UnsupportedError

MOST_BYTES = 2**30


def scratch(program: Program) -> Tensor:
    """Return the zeroed working memory of a program; raise `UnsupportedError` if it is too large."""
    if program.scratch_bytes > MOST_BYTES:
        raise UnsupportedError(f"batches whose activations take {program.scratch_bytes / 2**30:.1f} GiB")
    return torch.zeros(program.scratch_bytes // FLOAT)
