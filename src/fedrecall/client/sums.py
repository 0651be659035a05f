"""The sums over a round's clients that the server update is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedrecall.vector import Tensors


@dataclass
class Sums:
    """Weighted float64 sums over the clients of a round, in task order.

    Float32 sums depend on their order in the last bits, and one client's would not be its model to the bit.
    """

    tensors: Tensors = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)  # of the weights, by the tensor's name
    floats: Tensor | None = None  # buffers, weighted by the samples
    counters: Tensor | None = None
    samples: int = 0
    loss: float = 0.0

    def add_tensor(self, name: str, tensor: Tensor, weight: float, total: float) -> None:
        """Add `weight` times a tensor, which stands for clients whose weights add up to `total`."""
        self.tensors[name] = add_scaled(self.tensors.get(name), tensor, weight)
        self.totals[name] = self.totals.get(name, 0.0) + total

    def add_buffers(self, floats: Tensor, weight: float, counters: Tensor) -> None:
        """Floats are added, of counters the largest is kept."""
        self.counters = counters.clone() if self.counters is None else torch.maximum(self.counters, counters)
        self.floats = add_scaled(self.floats, floats, weight)

    def mean_loss(self) -> float:
        return self.loss / self.samples


def add_scaled(total: Tensor | None, tensor: Tensor, weight: float) -> Tensor:
    """`total + weight * tensor` in float64, in place where there is a total."""
    if total is None:
        total = torch.zeros_like(tensor, dtype=torch.float64)
    return total.add_(tensor, alpha=weight)
