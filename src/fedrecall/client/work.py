"""The work of a round: what every worker knows of a run, its tasks, and what they give back."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedrecall.algorithms.base import Algorithm
from fedrecall.client.lanes.lowering import Lowering
from fedrecall.client.sums import LEAF, Sums, SumTree
from fedrecall.data.federation import EVERYONE, Federation
from fedrecall.device import CPU, Device
from fedrecall.models.build import build_model
from fedrecall.objectives.base import Objective
from fedrecall.options import Shares
from fedrecall.recipe.recipe import Recipe
from fedrecall.recipe.settings import BatchNorm, Local
from fedrecall.vector import FlatModel, Payload, Tensors


@dataclass(frozen=True)
class Job:
    """What every worker of a run needs to know, once."""

    model: Callable[[], nn.Module]
    algorithm: Algorithm
    objective: Objective
    local: Local
    seed: int
    batch_norm: BatchNorm = "average"
    judged_for: str | Shares = "as_trained"  # the class shares, when a model is evaluated
    lowering: Lowering | None = None  # what kernels compute; None: steps are PyTorch's own

    @classmethod
    def of(cls, recipe: Recipe, model: Callable[[], nn.Module], algorithm: Algorithm, objective: Objective) -> Job:
        """What a recipe says, with the things that it names."""
        rest = recipe.local, recipe.seed, recipe.batch_norm, recipe.evaluation.prior
        return cls(model, algorithm, objective, *rest)

    def logit_shift(self, federation: Federation) -> Tensor | None:
        """What is added to a model's logits when it is judged; None: nothing."""
        if self.judged_for == "as_trained":
            return None
        return self.objective.shift_to(self.judged_for, federation.pooled_shares)

    def build_model(self, federation: Federation, device: Device = CPU) -> FlatModel:
        """The model with its initial weights, as flat vectors."""
        return build_model(self.model, federation, self.seed, self.local.threads, device.torch)

    @property
    def knows_validation(self) -> bool:
        """Does the loss also count the labels of a client's validation samples?"""
        return self.local.beta_from == "train+validation"

    @property
    def own_buffers(self) -> bool:
        """Do batch-norm statistics stay with the clients?"""
        return self.algorithm.personal or self.batch_norm == "local"


class TrainTask(NamedTuple):
    """One client's local training. Rounds have many of them."""

    round: int
    order: int  # its place in the sum
    client: int
    lr: float = 0.0
    steps: int = 0  # local steps, if not as many as the settings say
    state_version: int = 0  # the round that wrote the client's state; 0: it has none yet
    probe: bool = False  # also evaluate the client's model on the pooled validation data
    clients: tuple[int, ...] = ()  # of the validation data, only that of these clients; none named: all of it

    def __str__(self) -> str:
        who = "all clients as one," if self.client == EVERYONE else f"client {self.client}"
        return f"{who} in round {self.round}"


class EvaluateTask(NamedTuple):
    """The evaluation of a model on a range of pooled samples."""

    round: int
    order: int
    split: str  # "validation", "test" or "held_out"
    client: int | None = None  # whose own model; None: the published one
    state_version: int = 0
    clients: tuple[int, ...] = ()
    logits: bool = False  # give them back too
    start: int = 0
    stop: int = 0

    def __str__(self) -> str:
        return f"evaluation on {self.split} data in round {self.round}"


Task = TrainTask | EvaluateTask


@dataclass(frozen=True)
class Predictions:
    """What a model makes of samples, an entry each."""

    correct: np.ndarray
    nll: np.ndarray  # the negative log-likelihood of the label
    confidence: np.ndarray  # the probability of the class that the model chose
    logits: np.ndarray | None = None  # where they were asked for

    @classmethod
    def concatenate(cls, parts: Sequence[Predictions]) -> Predictions:
        logits = [part.logits for part in parts if part.logits is not None]
        return cls(
            np.concatenate([part.correct for part in parts]),
            np.concatenate([part.nll for part in parts]),
            np.concatenate([part.confidence for part in parts]),
            np.concatenate(logits) if logits else None,
        )


@dataclass(frozen=True)
class EvaluateResult:
    """What an evaluation gives back."""

    task: EvaluateTask
    predictions: Predictions

    def scalars(self) -> tuple[Any, ...]:
        """All but the task and the vectors, of which there are none."""
        return (self.predictions,)


class ProbeAnswers(NamedTuple):
    """What a client's model gets right of the probed samples, after its local steps."""

    correct: np.ndarray
    with_global_statistics: np.ndarray | None = None  # with the batch-norm statistics that it was sent


@dataclass
class TrainResult:
    """What a client's training gives back."""

    task: TrainTask
    sent: Tensors = field(default_factory=dict)
    buffers: Tensors = field(default_factory=dict)
    state: int = 0  # the version of the client's new state; 0: it has none
    samples: int = 0  # that it trains on
    steps: int = 0
    loss: float = 0.0  # the mean over its steps
    probe: ProbeAnswers | None = None

    def scalars(self) -> tuple[Any, ...]:
        """All but the task and the vectors, in the order of the fields."""
        return self.state, self.samples, self.steps, self.loss, self.probe

    def states(self) -> dict[int, int]:
        """The versions of the new states, by client."""
        return {self.task.client: self.state}

    def trained(self) -> list[tuple[int, int]]:
        """Samples and steps of each client."""
        return [(self.samples, self.steps)]

    def probed(self) -> list[tuple[TrainTask, ProbeAnswers]]:
        """The tasks whose clients' models were probed, and what was found."""
        return [(self.task, self.probe)] if self.probe else []

    def bytes(self, payload: Payload) -> int:
        """Of what was sent."""
        return payload.bytes(self.sent, self.buffers)

    def copy(self) -> TrainResult:
        """Return the same with tensors of its own."""
        sent = {name: tensor.clone() for name, tensor in self.sent.items()}
        return replace(self, sent=sent, buffers={name: tensor.clone() for name, tensor in self.buffers.items()})

    def without_vectors(self) -> TrainResult:
        return TrainResult(self.task, {}, {}, *self.scalars())

    def finite_part(self, algorithm: Algorithm) -> tuple[TrainResult | None, list[int]]:
        """The result without clients that sent numbers which are not finite, and who these are."""
        tensors = (*self.sent.values(), *self.buffers.values())
        good = all(is_finite(tensor) for tensor in tensors if tensor.is_floating_point())
        return (self, []) if good else (None, [self.task.client])

    def add_to(self, tree: SumTree, algorithm: Algorithm) -> None:
        sums = tree.leaf(self.task.order)
        for name, tensor in self.sent.items():
            weight = algorithm.weight(name, self.samples, self.steps)
            sums.add_tensor(name, tensor, weight, weight)
        if self.buffers:
            sums.add_buffers(self.buffers["b"], self.samples, self.buffers["i"])
        sums.samples += self.samples
        sums.loss += self.samples * self.loss
        look_at_update(sums, tree, self.sent, algorithm)


@dataclass(frozen=True)
class Rows:
    """The clients of a group, column by column."""

    tasks: Sequence[TrainTask]
    samples: list[int]
    steps: list[int]
    losses: list[float]
    weights: list[float]  # of their models in the sum

    def pairs(self) -> list[tuple[int, int]]:
        """Samples and steps of each."""
        return list(zip(self.samples, self.steps))

    def only(self, kept: Sequence[bool]) -> Rows:
        tasks, samples = list(compress(self.tasks, kept)), list(compress(self.samples, kept))
        steps, losses = list(compress(self.steps, kept)), list(compress(self.losses, kept))
        return Rows(tasks, samples, steps, losses, list(compress(self.weights, kept)))


@dataclass
class TrainedGroup:
    """What several clients' training gives back together, a row each: their models. They keep no state."""

    rows: Rows
    models: Sequence[Tensor]  # all rows, as blocks of some
    buffers: Tensors  # stacked, or none
    weight: float  # of all rows together
    summed: Tensors  # the rows of the models, "w", and of the buffers "b", so weighted

    @classmethod
    def of(
        cls, rows: Rows, models: Sequence[Tensor], buffers: Tensors, summed: Tensor | None = None
    ) -> TrainedGroup:
        """The group and its sums, where that of the models is not there: in the model's precision, for groups are
        equal to `serial` up to rounding."""
        sums = {"w": weighted_sum(models, rows.weights) if summed is None else summed}
        if buffers:
            sums["b"] = torch.tensor(rows.samples, dtype=buffers["b"].dtype) @ buffers["b"]
        return cls(rows, models, buffers, sum(rows.weights), sums)

    def states(self) -> dict[int, int]:
        return {}

    def trained(self) -> list[tuple[int, int]]:
        return self.rows.pairs()

    def probed(self) -> list[tuple[TrainTask, ProbeAnswers]]:
        return []  # who is probed is not in a group

    def bytes(self, payload: Payload) -> int:
        return payload.bytes({}, self.buffers) + len(self.rows.tasks) * payload.bytes({"w": self.models[0][0]}, {})

    def finite_part(self, algorithm: Algorithm) -> tuple[TrainedGroup | None, list[int]]:
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
        return TrainedGroup.of(rows, [w[good]], buffers), dropped

    def add_to(self, tree: SumTree, algorithm: Algorithm) -> None:
        """All rows at once, each with its weight."""
        sums = tree.leaf(self.rows.tasks[0].order)
        sums.add_tensor("w", self.summed["w"], 1.0, self.weight)
        if self.buffers:
            sums.add_buffers(self.summed["b"], 1.0, self.buffers["i"].amax(0))
        sums.samples += sum(self.rows.samples)
        sums.loss += sum(map(operator.mul, self.rows.samples, self.rows.losses))
        if tree.sent:
            for w in chain.from_iterable(self.models):
                look_at_update(sums, tree, {"w": w}, algorithm)


@dataclass
class Summed:
    """What clients that are one node of the sum gave back together, added up where they trained."""

    level: int  # of the node in the tree of sums
    number: int
    sums: Sums
    accepted: list[TrainResult]  # without their vectors
    dropped: list[TrainResult]  # whose numbers are not finite
    sent_bytes: int

    @classmethod
    def leaf(cls, results: Sequence[TrainResult], algorithm: Algorithm, payload: Payload, tree: SumTree) -> Summed:
        """The clients of one leaf, added up in an empty tree."""
        accepted, dropped, sent_bytes = [], [], 0
        for result in results:
            good, _ = result.finite_part(algorithm)
            if good is None:
                dropped.append(result.without_vectors())
                continue
            good.add_to(tree, algorithm)
            sent_bytes += good.bytes(payload)
            accepted.append(good.without_vectors())
        return cls(0, results[0].task.order // LEAF, tree.total(), accepted, dropped, sent_bytes)

    def states(self) -> dict[int, int]:
        return {result.task.client: result.state for result in (*self.accepted, *self.dropped)}

    def trained(self) -> list[tuple[int, int]]:
        return [(result.samples, result.steps) for result in self.accepted]

    def probed(self) -> list[tuple[TrainTask, ProbeAnswers]]:
        return [found for result in self.accepted for found in result.probed()]

    def bytes(self, payload: Payload) -> int:
        return self.sent_bytes

    def finite_part(self, algorithm: Algorithm) -> tuple[Summed | None, list[int]]:
        return self if self.accepted else None, [result.task.client for result in self.dropped]

    def add_to(self, tree: SumTree, algorithm: Algorithm) -> None:
        tree.graft(self.level, self.number, self.sums)


@dataclass(frozen=True)
class Missing:
    """A client that gave nothing back, or nothing that the round could use."""

    task: TrainTask
    reason: str  # the end of a sentence that begins with the client


Trained = TrainResult | TrainedGroup | Summed
Result = Trained | EvaluateResult | Missing


def weighted_sum(models: Sequence[Tensor], weights: list[float]) -> Tensor:
    """Of the rows of all blocks."""
    parts = torch.split(torch.tensor(weights, dtype=models[0].dtype), [len(block) for block in models])
    total = parts[0] @ models[0]
    for part, block in zip(parts[1:], models[1:]):
        total.addmv_(block.t(), part)
    return total


def look_at_update(sums: Sums, tree: SumTree, sent: Tensors, algorithm: Algorithm) -> None:
    """Note how a client's update lies, where that is asked for."""
    update = algorithm.update(sent, tree.sent) if tree.sent else None
    if update is not None:
        sums.updates.add(update)


def is_finite(tensor: Tensor) -> bool:
    """A finite sum has finite parts, and is found in one pass; one that is not may have overflowed."""
    return math.isfinite(tensor.sum()) or bool(tensor.isfinite().all())
