"""A client's update: what its local training gives back to the server."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedrecall.algorithms.base import Algorithm
from fedrecall.client.sums import Sums, SumTree
from fedrecall.client.tasks import TrainTask
from fedrecall.vector import Tensors


class ProbeAnswers(NamedTuple):
    """What a client's model gets right of the probed samples, after its local steps."""

    correct: np.ndarray
    with_global_statistics: np.ndarray | None = None  # with the batch-norm statistics that it was sent


@dataclass
class Update:
    """What a client's local training gives back. The receiver owns its tensors: they stay valid."""

    task: TrainTask
    sent: Tensors = field(default_factory=dict)
    buffers: Tensors = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)  # of what the algorithm sends, in their sums
    state: int = 0  # the version of the client's new state; 0: it has none
    samples: int = 0  # that it trains on
    steps: int = 0
    loss: float = 0.0  # the mean over its steps
    probe: ProbeAnswers | None = None
    wire_bytes: int = 0  # of the tensors that travel

    @property
    def client(self) -> int:
        return self.task.client

    def scalars(self) -> tuple[Any, ...]:
        """Return all but the task and the vectors, in the order of the fields."""
        return (
            self.weights, self.state, self.samples, self.steps, self.loss, self.probe, self.wire_bytes
        )  # fmt: skip

    def states(self) -> dict[int, int]:
        """Return the versions of the new states, by client."""
        return {self.client: self.state}

    def trained(self) -> list[tuple[int, int]]:
        """Return the samples and steps of each client."""
        return [(self.samples, self.steps)]

    def probed(self) -> list[tuple[TrainTask, ProbeAnswers]]:
        """Return the tasks whose clients' models were probed, and what was found."""
        return [(self.task, self.probe)] if self.probe else []

    def copy(self) -> Update:
        """Return the same with tensors of its own."""
        sent = {name: tensor.clone() for name, tensor in self.sent.items()}
        return replace(self, sent=sent, buffers={name: tensor.clone() for name, tensor in self.buffers.items()})

    def without_vectors(self) -> Update:
        return replace(self, sent={}, buffers={})

    def finite_part(self) -> tuple[Update | None, list[int]]:
        """Return the update without clients that sent numbers which are not finite, and who these are."""
        tensors = (*self.sent.values(), *self.buffers.values())
        good = all(is_finite(tensor) for tensor in tensors if tensor.is_floating_point())
        return (self, []) if good else (None, [self.client])

    def add_to(self, tree: SumTree, algorithm: Algorithm) -> None:
        """Add it to the sums of its round."""
        sums = tree.leaf(self.task.order)
        for name, tensor in self.sent.items():
            sums.add_tensor(name, tensor, self.weights[name], self.weights[name])
        if self.buffers:
            sums.add_buffers(self.buffers["b"], self.samples, self.buffers["i"])
        sums.samples += self.samples
        sums.loss += self.samples * self.loss
        look_at_update(sums, tree, self.sent, algorithm)


@dataclass(frozen=True)
class Missing:
    """A client that gave nothing back, or nothing that the round could use."""

    task: TrainTask
    reason: str  # the end of a sentence that begins with the client

    @property
    def client(self) -> int:
        return self.task.client


def look_at_update(sums: Sums, tree: SumTree, sent: Tensors, algorithm: Algorithm) -> None:
    """Note how a client's update lies, where that is asked for."""
    update = algorithm.update(sent, tree.sent) if tree.sent else None
    if update is not None:
        sums.updates.add(update)


def is_finite(tensor: Tensor) -> bool:
    """A finite sum has finite parts, and is found in one pass; one that is not may have overflowed."""
    return math.isfinite(tensor.sum()) or bool(tensor.isfinite().all())
