"""Updates that an engine returns summed or stacked, because they are not needed one by one."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress

import torch
from torch import Tensor

from fedrecall.algorithms.base import Algorithm
from fedrecall.client.predictions import EvaluateResult
from fedrecall.client.sums import LEAF, Sums, SumTree
from fedrecall.client.tasks import TrainTask
from fedrecall.client.update import MissingClient, ProbeAnswers, Update, is_finite, track_update
from fedrecall.core.vector import Payload, Tensors


@dataclass(frozen=True)
class GroupRows:
    """The results of a group of clients, one column per field."""

    tasks: Sequence[TrainTask]
    samples: list[int]
    steps: list[int]
    losses: list[float]
    weights: list[float]  # of the models in the sum

    def pairs(self) -> list[tuple[int, int]]:
        """Return the samples and steps of each client."""
        return list(zip(self.samples, self.steps))

    def only(self, kept: Sequence[bool]) -> GroupRows:
        tasks, samples = list(compress(self.tasks, kept)), list(compress(self.samples, kept))
        steps, losses = list(compress(self.steps, kept)), list(compress(self.losses, kept))
        return GroupRows(tasks, samples, steps, losses, list(compress(self.weights, kept)))


@dataclass
class UpdateGroup:
    """The stacked updates of several clients without state, one row per client."""

    rows: GroupRows
    models: Sequence[Tensor]  # all rows, in blocks
    buffers: Tensors  # stacked, or empty
    payload: Payload
    weight: float  # sum over all rows
    summed: Tensors  # weighted sums of the models, "w", and of the float buffers, "b"
    wire_bytes: int = 0

    @classmethod
    def of(
        cls,
        rows: GroupRows,
        models: Sequence[Tensor],
        buffers: Tensors,
        payload: Payload,
        summed: Tensor | None = None,
    ) -> UpdateGroup:
        """Return the group with its sums; `summed` is that of the models, if known. Sums are in the model's
        precision, because groups equal `serial` only up to rounding."""
        sums = {"w": weighted_sum(models, rows.weights) if summed is None else summed}
        if buffers:
            sums["b"] = torch.tensor(rows.samples, dtype=buffers["b"].dtype) @ buffers["b"]
        wire_bytes = payload.bytes({}, buffers) + len(rows.tasks) * payload.bytes({"w": models[0][0]}, {})
        return cls(rows, models, buffers, payload, sum(rows.weights), sums, wire_bytes)

    def states(self) -> dict[int, int]:
        return {}

    def trained(self) -> list[tuple[int, int]]:
        return self.rows.pairs()

    def probed(self) -> list[tuple[TrainTask, ProbeAnswers]]:
        return []  # probed clients are never in a group

    def finite_part(self) -> tuple[UpdateGroup | None, list[int]]:
        if all(is_finite(tensor) for tensor in self.summed.values()):
            return self, []
        w = torch.cat(list(self.models))
        tensors = [t for t in (w, *self.buffers.values()) if t.is_floating_point()]
        good = torch.stack([tensor.isfinite().all(1) for tensor in tensors]).all(0)
        dropped = [task.client for task, kept in zip(self.rows.tasks, good.tolist()) if not kept]
        if not good.any():
            return None, dropped
        buffers = {name: stacked[good] for name, stacked in self.buffers.items()}
        rows = self.rows.only(good.tolist())
        return UpdateGroup.of(rows, [w[good]], buffers, self.payload), dropped

    def add_to(self, tree: SumTree, algorithm: Algorithm) -> None:
        """Add the sums over all rows."""
        sums = tree.leaf(self.rows.tasks[0].order)
        sums.add_tensor("w", self.summed["w"], 1.0, self.weight)
        if self.buffers:
            sums.add_buffers(self.summed["b"], 1.0, self.buffers["i"].amax(0))
        sums.samples += sum(self.rows.samples)
        sums.loss += sum(map(operator.mul, self.rows.samples, self.rows.losses))
        if tree.sent:
            for w in chain.from_iterable(self.models):
                track_update(sums, tree, {"w": w}, algorithm)


@dataclass
class PartialSum:
    """The updates under one node of the sum tree, summed where the clients trained."""

    level: int  # of the node in the sum tree
    number: int
    sums: Sums
    accepted: list[Update]  # without their vectors
    dropped: list[Update]  # with non-finite numbers
    wire_bytes: int

    @classmethod
    def leaf(cls, results: Sequence[Update], algorithm: Algorithm, tree: SumTree) -> PartialSum:
        """Return the sum of one leaf's updates; `tree` is empty before."""
        accepted, dropped, wire_bytes = [], [], 0
        for result in results:
            good, _ = result.finite_part()
            if good is None:
                dropped.append(result.without_vectors())
                continue
            good.add_to(tree, algorithm)
            wire_bytes += good.wire_bytes
            accepted.append(good.without_vectors())
        return cls(0, results[0].task.order // LEAF, tree.total(), accepted, dropped, wire_bytes)

    def states(self) -> dict[int, int]:
        return {result.task.client: result.state for result in (*self.accepted, *self.dropped)}

    def trained(self) -> list[tuple[int, int]]:
        return [(result.samples, result.steps) for result in self.accepted]

    def probed(self) -> list[tuple[TrainTask, ProbeAnswers]]:
        return [found for result in self.accepted for found in result.probed()]

    def finite_part(self) -> tuple[PartialSum | None, list[int]]:
        return self if self.accepted else None, [result.task.client for result in self.dropped]

    def add_to(self, tree: SumTree, algorithm: Algorithm) -> None:
        tree.graft(self.level, self.number, self.sums)


Contribution = Update | UpdateGroup | PartialSum
Result = Contribution | EvaluateResult | MissingClient


def weighted_sum(models: Sequence[Tensor], weights: list[float]) -> Tensor:
    """Return the weighted sum of the rows of all blocks."""
    parts = torch.split(torch.tensor(weights, dtype=models[0].dtype), [len(block) for block in models])
    total = parts[0] @ models[0]
    for part, block in zip(parts[1:], models[1:]):
        total.addmv_(block.t(), part)
    return total
