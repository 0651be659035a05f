"""The sums over a round's clients that the server update is made of."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedrecall.algorithms.base import Algorithm, Population
from fedrecall.client.work import Group, Result, grouped
from fedrecall.vector import Tensors


@dataclass
class Sums:
    """Weighted float64 sums over the clients of a round, in task order.

    Float32 sums depend on their order in the last bits, and one client's would not be its model to the bit.
    """

    tensors: Tensors = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    floats: Tensor | None = None  # buffers, weighted by the samples
    counters: Tensor | None = None
    samples: int = 0
    loss: float = 0.0
    bytes: int = 0  # of all that the clients sent

    def add(self, result: Result, algorithm: Algorithm) -> None:
        if isinstance(result, Group):
            self._add_group(result)
            return
        for name, tensor in result.sent.items():
            weight = algorithm.weight(name, result.n, result.steps)
            self.tensors[name] = added(self.tensors.get(name), tensor, weight)
            self.totals[name] = self.totals.get(name, 0.0) + weight
        if result.buffers:
            counters = result.buffers["i"]
            self.counters = counters.clone() if self.counters is None else torch.maximum(self.counters, counters)
            self.floats = added(self.floats, result.buffers["b"], result.n)
        self.bytes += sum(tensor.nbytes for tensor in (*result.sent.values(), *result.buffers.values()))
        self.samples += result.n
        self.loss += result.n * result.metrics["loss"]

    def _add_group(self, group: Group) -> None:
        """All rows at once, each with its weight."""
        for name in group.sent:
            self.tensors[name] = added(self.tensors.get(name), group.summed[name], 1.0)
            self.totals[name] = self.totals.get(name, 0.0) + sum(group.weights[name])
        if group.buffers:
            counters = group.buffers["i"].amax(0)
            self.counters = counters if self.counters is None else torch.maximum(self.counters, counters)
            self.floats = added(self.floats, group.summed["b"], 1.0)
        self.bytes += sum(tensor.nbytes for tensor in (*group.sent.values(), *group.buffers.values()))
        self.samples += sum(group.rows.samples)
        self.loss += sum(map(operator.mul, group.rows.samples, group.rows.losses))

    def server(self, algorithm: Algorithm, before: Tensors, population: Population) -> Tensors:
        """The server update, rounded once to the model's precision."""
        dtype = before["w"].dtype
        new = algorithm.aggregate(before, self.tensors, self.totals, population)
        return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in new.items()}

    def buffers(self, before: Tensors) -> Tensors:
        """Float buffers are means, counters the largest; those of before, if the clients keep theirs."""
        if self.floats is None or self.counters is None:
            return before
        return {"b": (self.floats / self.samples).to(before["b"].dtype), "i": self.counters}

    def mean_loss(self) -> float:
        return self.loss / self.samples


def finite_part(result: Result, algorithm: Algorithm) -> tuple[Result | None, list[int]]:
    """A result without the clients that sent numbers which are not finite, and who these are."""
    looked_at = result.summed if isinstance(result, Group) else {**result.sent, **result.buffers}
    if all(is_finite(tensor) for tensor in looked_at.values() if tensor.is_floating_point()):
        return result, []
    if not isinstance(result, Group):
        return None, [result.task.client]
    tensors = [t for t in (*result.sent.values(), *result.buffers.values()) if t.is_floating_point()]
    good = torch.stack([tensor.isfinite().all(1) for tensor in tensors]).all(0)
    dropped = [task.client for task, kept in zip(result.rows.tasks, good.tolist()) if not kept]
    if not good.any():
        return None, dropped
    sent = {name: stacked[good] for name, stacked in result.sent.items()}
    buffers = {name: stacked[good] for name, stacked in result.buffers.items()}
    return grouped(result.rows.only(good.tolist()), sent, buffers, algorithm), dropped


def is_finite(tensor: Tensor) -> bool:
    """A finite sum has finite parts, and is found in one pass; one that is not may have overflowed."""
    return math.isfinite(tensor.sum()) or bool(tensor.isfinite().all())


def added(total: Tensor | None, tensor: Tensor, weight: float) -> Tensor:
    if total is None:
        total = torch.zeros_like(tensor, dtype=torch.float64)
    return total.add_(tensor, alpha=weight)
