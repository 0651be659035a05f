"""Stochastic quantisation: 8 or 4 bits a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedrecall.core.vector import Tensors
from fedrecall.updates.base import Stage, StageContext

LEVELS, SCALES = ".levels", ".scales"  # endings of the names in a message
HALF = 8  # added to a level so that it is a whole number of 4 bits; 0 stands for no number


@dataclass(frozen=True)
class Quantise(Stage):
    """Rounds each number to 8 or 4 bits, up or down at random so that its mean is the number itself.

    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017,
    arXiv 1610.02132, with the largest absolute value of a bucket as its scale, as in their experiments, and levels of
    a fixed width instead of a variable-length code.

    s = 2^(bits-1) - 1; per bucket m = max |v|; q = floor(s v / m + u) with u uniform on [0, 1); v' = m q / s.
    """

    bits: Annotated[Literal[8, 4], "of a number that travels"] = 8
    bucket: Annotated[int, Field(ge=1, le=2**31), "consecutive numbers that share a scale of 4 bytes"] = 512

    def send(self, change: Tensors, state: Tensors, at: StageContext) -> tuple[Tensors, Tensors]:
        random, message = at.stream(), Tensors()
        for name, tensor in change.items():
            if not tensor.is_floating_point():  # positions and counts of an earlier stage
                message[name] = tensor
                continue
            levels, message[name + SCALES] = self._levels(tensor, random)
            message[name + LEVELS] = packed(levels) if self.bits == 4 else levels
        return message, {}

    def receive(self, sent: Tensors, at: StageContext) -> Tensors:
        change = {}
        for name, tensor in sent.items():
            if name.endswith(LEVELS):
                own = name.removesuffix(LEVELS)
                levels = unpacked(tensor) if self.bits == 4 else tensor
                scales = sent[own + SCALES].repeat_interleave(self.bucket)[: len(levels)]
                change[own] = levels.to(scales.dtype) * (scales / self._top)
            elif not name.endswith(SCALES):
                change[name] = tensor
        return change

    @property
    def _top(self) -> int:
        top: int = 2 ** (self.bits - 1) - 1
        return top

    def _levels(self, tensor: Tensor, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return each number's level, and each bucket's scale."""
        count = -(-len(tensor) // self.bucket)
        buckets = torch.nn.functional.pad(tensor, (0, count * self.bucket - len(tensor))).view(count, self.bucket)
        scales = buckets.abs().amax(1)
        # In float64, so that adding the random number does not round up.
        exact = buckets.double() * self._top / scales.double().where(scales != 0, 1.0)[:, None]
        drawn = torch.from_numpy(random.random(len(tensor)))
        levels = (exact.view(-1)[: len(tensor)] + drawn).floor().clamp(-self._top, self._top)
        return levels.nan_to_num(0.0).to(torch.int8), scales


def packed(levels: Tensor) -> Tensor:
    """Return two levels from -7 to 7 in each byte; after an odd number of them the last half is empty.

    >>> packed(torch.tensor([-7, 7, 0], dtype=torch.int8)).tolist()        # 1 + 16 * 15, 8 + 16 * 0
    [241, 8]
    """
    halves = torch.nn.functional.pad((levels + HALF).to(torch.uint8), (0, len(levels) % 2))
    return halves[0::2] + 16 * halves[1::2]


def unpacked(pairs: Tensor) -> Tensor:
    """Return the levels in these bytes.

    >>> unpacked(torch.tensor([241, 8], dtype=torch.uint8)).tolist()
    [-7, 7, 0]
    """
    halves = torch.stack([pairs % 16, pairs // 16], 1).view(-1)
    if len(halves) and not halves[-1]:
        halves = halves[:-1]
    return halves.to(torch.int8) - HALF
