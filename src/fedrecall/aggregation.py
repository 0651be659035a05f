"""The sums over a round's clients that the server update is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedrecall.algorithms.base import Algorithm, Population
from fedrecall.engines.base import Group, Result
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
            self._add_group(result, algorithm)
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

    def _add_group(self, group: Group, algorithm: Algorithm) -> None:
        """All rows at once, each with its weight."""
        for name, stacked in group.sent.items():
            weights = [algorithm.weight(name, row.n, row.steps) for row in group.rows]
            self.tensors[name] = weighted(self.tensors.get(name), stacked, weights)
            self.totals[name] = self.totals.get(name, 0.0) + sum(weights)
        samples = [row.n for row in group.rows]
        counters = group.buffers["i"].amax(0)
        self.counters = counters if self.counters is None else torch.maximum(self.counters, counters)
        self.floats = weighted(self.floats, group.buffers["b"], [float(n) for n in samples])
        self.bytes += sum(tensor.nbytes for tensor in (*group.sent.values(), *group.buffers.values()))
        self.samples += sum(samples)
        self.loss += sum(row.n * row.loss for row in group.rows)

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


def finite_part(result: Result) -> tuple[Result | None, list[int]]:
    """A result without the clients that sent numbers which are not finite, and who these are."""
    tensors = [t for t in (*result.sent.values(), *result.buffers.values()) if t.is_floating_point()]
    if all(map(is_finite, tensors)):
        return result, []
    if not isinstance(result, Group):
        return None, [result.task.client]
    good = torch.stack([tensor.isfinite().all(1) for tensor in tensors]).all(0)
    rows = [row for row, kept in zip(result.rows, good.tolist()) if kept]
    dropped = [row.task.client for row, kept in zip(result.rows, good.tolist()) if not kept]
    if not rows:
        return None, dropped
    sent = {name: stacked[good] for name, stacked in result.sent.items()}
    buffers = {name: stacked[good] for name, stacked in result.buffers.items()}
    return Group(rows[0].task, sent, buffers, rows=rows), dropped


def is_finite(tensor: Tensor) -> bool:
    """A finite sum has finite parts, and is found in one pass; one that is not may have overflowed."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def added(total: Tensor | None, tensor: Tensor, weight: float) -> Tensor:
    if total is None:
        total = torch.zeros_like(tensor, dtype=torch.float64)
    return total.add_(tensor, alpha=weight)


def weighted(total: Tensor | None, stacked: Tensor, weights: list[float]) -> Tensor:
    # Of a group in the model's precision, between groups in float64: groups are equal to `serial` up to rounding.
    summed = (torch.tensor(weights, dtype=stacked.dtype) @ stacked).double()
    return summed if total is None else total.add_(summed)
