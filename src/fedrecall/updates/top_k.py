"""Top-k sparsification with error feedback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedrecall.core.vector import Tensors
from fedrecall.updates.base import DecodeError, Stage, StageContext

VALUES, POSITIONS, SIZE = ".values", ".positions", ".size"  # endings of the names in a message


@dataclass(frozen=True)
class TopK(Stage):
    """Sends the entries of each vector with the largest absolute values, and keeps the rest for the next time.

    Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018, arXiv 1809.07599.

    wanted = update + residual; the k largest |wanted| are sent; residual = wanted - sent, which the client keeps
    until it takes part again. Of equal values the first is sent. With `error_feedback: false` the rest is lost.
    """

    fraction: Annotated[float, Field(gt=0, le=1), "of the entries that is sent, at least one"] = 0.01
    error_feedback: Annotated[bool, "add what was not sent to the client's next update"] = True

    def send(self, change: Tensors, state: Tensors, at: StageContext) -> tuple[Tensors, Tensors]:
        message, kept = Tensors(), Tensors()
        for name, tensor in change.items():
            if not tensor.is_floating_point() or not len(tensor):
                message[name] = tensor
                continue
            wanted = tensor + state[name] if name in state else tensor
            positions = largest_entries(wanted.abs(), self.count(len(tensor)))
            message[name + VALUES] = wanted[positions]
            message[name + POSITIONS] = positions.to(position_type(len(tensor)))
            message[name + SIZE] = torch.tensor([len(tensor)], dtype=position_type(len(tensor)))
            if self.error_feedback:
                kept[name] = wanted.index_fill(0, positions, 0.0)
        return message, kept

    def receive(self, sent: Tensors, at: StageContext) -> Tensors:
        change = {}
        for name, tensor in sent.items():
            if name.endswith(VALUES):
                own = name.removesuffix(VALUES)
                change[own] = self._spread(tensor, sent[own + POSITIONS].long(), int(sent[own + SIZE]))
            elif not name.endswith((POSITIONS, SIZE)):
                change[name] = tensor
        return change

    def count(self, size: int) -> int:
        """Return the number of entries that are sent of a vector."""
        return max(1, round(self.fraction * size))

    def _spread(self, values: Tensor, positions: Tensor, size: int) -> Tensor:
        """Return the vector with these values at these positions and zeros elsewhere."""
        if self.count(size) != len(values):
            raise DecodeError(f"it sent {len(values)} values of a vector of {size}, which top_k does not do")
        ascending = bool((positions[1:] > positions[:-1]).all())
        if not ascending or int(positions[0]) < 0 or int(positions[-1]) >= size:
            raise DecodeError(f"its positions are not ascending ones from 0 to {size - 1}")
        return values.new_zeros(size).index_copy_(0, positions, values)


def largest_entries(sizes: Tensor, count: int) -> Tensor:
    """Return the positions of the largest values in ascending order; of equal ones the first.

    A sort would do, but this is linear in the length. NaN counts as the largest value.

    >>> largest_entries(torch.tensor([1.0, 3.0, 2.0, 2.0]), 2).tolist()
    [1, 2]
    """
    threshold = sizes.topk(count).values[-1]
    if threshold.isnan():
        return torch.arange(count)
    above = (sizes > threshold) | sizes.isnan()
    equal = (sizes == threshold).nonzero().view(-1)[: count - int(above.sum())]
    above[equal] = True
    return above.nonzero().view(-1)


def position_type(size: int) -> torch.dtype:
    """Return the integer type in which positions in a vector travel."""
    return torch.int32 if size < 2**31 else torch.int64
