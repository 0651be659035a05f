"""The sums over a round's clients, reduced in a tree of fixed shape.

Sixteen clients in task order form a leaf, sixteen leaves a node, and so on. Each node is summed in order, so that
engines that return single updates agree bitwise with a cluster that sums nodes where their clients trained. A
round of at most sixteen clients is one plain sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedrecall.core.vector import Tensors

LEAF = 16  # clients per leaf, and children per inner node
Scalars = tuple[dict[str, float], int, float, list[float], int]


def node_size(level: int) -> int:
    """Return the number of clients under a full node of this level; leaves have level 0."""
    size: int = LEAF ** (level + 1)
    return size


@dataclass
class UpdateGeometry:
    """Norms and mean cosine of the clients' updates, from sums: no update is kept.

    With unit vectors u_i = D_i / |D_i|, |sum_i u_i|^2 = m + 2 sum_{i<j} cos(D_i, D_j).
    """

    norms: list[float] = field(default_factory=list)
    directions: int = 0
    total: Tensor | None = None  # sum of the unit vectors

    def add(self, update: Tensor) -> None:
        norm = float(update.norm())
        self.norms.append(norm)
        if norm > 0:  # an update of zero has no direction
            self.directions += 1
            unit = update / norm
            self.total = unit if self.total is None else self.total.add_(unit)

    def add_all(self, later: UpdateGeometry) -> None:
        self.norms += later.norms
        self.directions += later.directions
        if later.total is not None:
            self.total = added(self.total, later.total)

    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if self.norms:
            found["update_norm"] = sum(self.norms) / len(self.norms)
        m = self.directions
        if m > 1 and self.total is not None:
            found["update_cosine"] = (float(self.total.square().sum()) - m) / (m * (m - 1))
        return found


@dataclass
class Sums:
    """Weighted float64 sums over clients, in task order.

    Float32 sums would depend on their order, and the mean over one client would not equal its model bitwise.
    """

    tensors: Tensors = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)  # sums of the weights, by tensor name
    floats: Tensor | None = None  # float buffers, weighted by samples
    counters: Tensor | None = None
    samples: int = 0
    loss: float = 0.0
    updates: UpdateGeometry = field(default_factory=UpdateGeometry)  # empty unless updates are tracked

    def add_tensor(self, name: str, tensor: Tensor, weight: float, total: float) -> None:
        """Add `weight * tensor`, the contribution of clients whose weights sum to `total`."""
        self.tensors[name] = add_scaled(self.tensors.get(name), tensor, weight)
        self.totals[name] = self.totals.get(name, 0.0) + total

    def add_buffers(self, floats: Tensor, weight: float, counters: Tensor) -> None:
        """Add float buffers times `weight`; keep the maximum of counters."""
        self.counters = counters.clone() if self.counters is None else torch.maximum(self.counters, counters)
        self.floats = add_scaled(self.floats, floats, weight)

    def add_all(self, later: Sums) -> None:
        """Add the sums over later clients."""
        for name, tensor in later.tensors.items():
            self.tensors[name] = added(self.tensors.get(name), tensor)
            self.totals[name] = self.totals.get(name, 0.0) + later.totals[name]
        if later.floats is not None and later.counters is not None:
            self.add_buffers(later.floats, 1.0, later.counters)
        self.samples += later.samples
        self.loss += later.loss
        self.updates.add_all(later.updates)

    def mean_loss(self) -> float:
        return self.loss / self.samples

    def vectors(self) -> Tensors:
        """Return the tensors by name; `of` restores the sums from these and `scalars`."""
        found = {f"tensors.{name}": tensor for name, tensor in self.tensors.items()}
        named = {"floats": self.floats, "counters": self.counters, "units": self.updates.total}
        return found | {name: tensor for name, tensor in named.items() if tensor is not None}

    def scalars(self) -> Scalars:
        return self.totals, self.samples, self.loss, self.updates.norms, self.updates.directions

    @classmethod
    def of(cls, vectors: Tensors, scalars: Scalars) -> Sums:
        totals, samples, loss, norms, directions = scalars
        tensors = {name: vectors[f"tensors.{name}"] for name in totals}
        updates = UpdateGeometry(norms, directions, vectors.get("units"))
        return cls(tensors, totals, vectors.get("floats"), vectors.get("counters"), samples, loss, updates)


class SumTree:
    """The sums of a round. Keeps at most one incomplete node per level."""

    def __init__(self, sent: Tensors | None = None) -> None:
        self.sent = sent  # the tensors sent to the clients, if updates are tracked
        self._open: list[tuple[int, Sums] | None] = []  # by level: number and sums of the open node

    def leaf(self, order: int) -> Sums:
        """Return the leaf that the client at task position `order` is added to; positions must ascend."""
        return self._node(0, order // LEAF)

    def graft(self, level: int, number: int, sums: Sums) -> None:
        """Insert a complete node that was summed elsewhere."""
        self._close(level, number)
        self._open[level] = number, sums

    def total(self) -> Sums:
        """Return the sums over all clients."""
        for level in range(len(self._open) - 1):
            self._complete(level)
        return self._open[-1][1] if self._open and self._open[-1] else Sums()

    def _node(self, level: int, number: int) -> Sums:
        self._close(level, number)
        found = self._open[level]
        if found is None:
            found = self._open[level] = number, Sums()
        return found[1]

    def _close(self, level: int, number: int) -> None:
        """Complete all open nodes except this one and its ancestors."""
        self._open += [None] * (level + 1 - len(self._open))
        for lower in range(level):
            self._complete(lower)
        while level < len(self._open):
            there = self._open[level]
            if there is not None and there[0] != number:
                self._complete(level)
            level, number = level + 1, number // LEAF

    def _complete(self, level: int) -> None:
        """Add a node to its parent."""
        found = self._open[level]
        if found is None:
            return
        self._open[level] = None
        self._open += [None] * (level + 2 - len(self._open))
        number, sums = found
        above = self._open[level + 1]
        if above is None:
            # The first child is not added to zeros: no sum is a negative zero, so that would change no bit.
            self._open[level + 1] = number // LEAF, sums
        else:
            above[1].add_all(sums)


def add_scaled(total: Tensor | None, tensor: Tensor, weight: float) -> Tensor:
    """Return `total + weight * tensor` in float64, computed in place if there is a total."""
    if total is None:
        total = torch.zeros_like(tensor, dtype=torch.float64)
    return total.add_(tensor, alpha=weight)


def added(total: Tensor | None, later: Tensor) -> Tensor:
    """Return `total + later`, computed in place if there is a total."""
    return later if total is None else total.add_(later)
