"""A client's update: the result of its local training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedrecall.algorithms.base import Algorithm
from fedrecall.client.sums import Sums, SumTree
from fedrecall.client.tasks import TrainTask
from fedrecall.core.vector import Tensors


class ProbeAnswers(NamedTuple):
    """The probed samples that a client's model gets right after its local steps."""

    correct: np.ndarray
    with_global_statistics: np.ndarray | None = None  # with the batch-norm statistics it was sent


@dataclass
class Update:
    """The result of a client's local training. The receiver owns its tensors: they stay valid."""

    task: TrainTask
    sent: Tensors = field(default_factory=dict)
    buffers: Tensors = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)  # of the sent tensors, in their sums
    state: int = 0  # version of the client's new state; 0 if none
    samples: int = 0  # number of training samples
    steps: int = 0
    loss: float = 0.0  # mean over the steps
    probe: ProbeAnswers | None = None
    wire_bytes: int = 0  # size of the sent tensors

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
        """Return the probed tasks and their answers."""
        return [(self.task, self.probe)] if self.probe else []

    def copy(self) -> Update:
        """Return a copy with its own tensors."""
        sent = {name: tensor.clone() for name, tensor in self.sent.items()}
        return replace(self, sent=sent, buffers={name: tensor.clone() for name, tensor in self.buffers.items()})

    def without_vectors(self) -> Update:
        return replace(self, sent={}, buffers={})

    def finite_part(self) -> tuple[Update | None, list[int]]:
        """Return the part from clients that sent finite numbers only, and the ids of the other clients."""
        tensors = (*self.sent.values(), *self.buffers.values())
        good = all(is_finite(tensor) for tensor in tensors if tensor.is_floating_point())
        return (self, []) if good else (None, [self.client])

    def add_to(self, tree: SumTree, algorithm: Algorithm) -> None:
        """Add the update to the sums of its round."""
        sums = tree.leaf(self.task.order)
        for name, tensor in self.sent.items():
            sums.add_tensor(name, tensor, self.weights[name], self.weights[name])
        if self.buffers:
            sums.add_buffers(self.buffers["b"], self.samples, self.buffers["i"])
        sums.samples += self.samples
        sums.loss += self.samples * self.loss
        track_update(sums, tree, self.sent, algorithm)


@dataclass(frozen=True)
class MissingClient:
    """A client that returned no update, or none that the round could use."""

    task: TrainTask
    reason: str  # completes a sentence that begins with the client

    @property
    def client(self) -> int:
        return self.task.client


def track_update(sums: Sums, tree: SumTree, sent: Tensors, algorithm: Algorithm) -> None:
    """Record the norm and direction of a client's update, if updates are tracked."""
    update = algorithm.update(sent, tree.sent) if tree.sent else None
    if update is not None:
        sums.updates.add(update)


def is_finite(tensor: Tensor) -> bool:
    """Whether all entries are finite: a finite sum proves it in one pass, but a sum may overflow."""
    return math.isfinite(tensor.sum()) or bool(tensor.isfinite().all())
