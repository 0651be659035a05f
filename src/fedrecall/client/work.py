"""The seam between the round loop and whatever runs its tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from fedrecall.algorithms.base import Algorithm
from fedrecall.data.federation import EVERYONE, Federation
from fedrecall.models.build import build
from fedrecall.objectives.base import Objective
from fedrecall.recipe.settings import BatchNorm, Local
from fedrecall.vector import FlatModel, Tensors


@dataclass(frozen=True)
class Job:
    """What every worker of a run needs to know, once."""

    model: Callable[[], nn.Module]
    algorithm: Algorithm
    objective: Objective
    local: Local
    seed: int
    batch_norm: BatchNorm = "average"

    def build_model(self, federation: Federation) -> FlatModel:
        """The model with its initial weights, as flat vectors."""
        return build(self.model, federation, self.seed, self.local.threads)

    @property
    def own_buffers(self) -> bool:
        """Do batch-norm statistics stay with the clients?"""
        return self.algorithm.personal or self.batch_norm == "local"


class Task(NamedTuple):
    """One client's local training, or the evaluation of a range of pooled samples. Rounds have many of them."""

    kind: Literal["train", "evaluate"]
    round: int
    order: int  # its place in the sum
    client: int = -1  # train: whose data; evaluate: whose own model, -1 for the published one
    lr: float = 0.0
    steps: int = 0  # local steps, if not as many as the settings say
    state_version: int = 0  # the round that wrote the client's state; 0: it has none yet
    probe: bool = False  # train: also evaluate the client's model on the pooled validation data
    split: str = ""  # evaluate: "validation", "test" or "held_out"
    clients: tuple[int, ...] = ()  # of the validation data, only that of these clients; none named: all of it
    logits: bool = False  # evaluate: give them back too
    start: int = 0
    stop: int = 0


def place(task: Task) -> str:
    """A task in the words of a sentence."""
    if task.kind == "train":
        if task.client == EVERYONE:
            return f"all clients as one, in round {task.round}"
        return f"client {task.client} in round {task.round}"
    return f"evaluation on {task.split} data in round {task.round}"


@dataclass
class Result:
    """What a task gives back."""

    task: Task
    sent: Tensors = field(default_factory=dict)
    buffers: Tensors = field(default_factory=dict)
    state: int = 0  # the version of the client's new state in the store; 0: it has none
    n: int = 0  # training samples, or samples evaluated
    steps: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """The clients of a group, column by column."""

    tasks: Sequence[Task]
    samples: list[int]
    steps: list[int]
    losses: list[float]

    def pairs(self) -> list[tuple[int, int]]:
        """Samples and steps of each."""
        return list(zip(self.samples, self.steps))

    def only(self, kept: Sequence[bool]) -> Rows:
        tasks, samples = list(compress(self.tasks, kept)), list(compress(self.samples, kept))
        return Rows(tasks, samples, list(compress(self.steps, kept)), list(compress(self.losses, kept)))


@dataclass
class Group(Result):
    """What several clients' training gives back together: stacked tensors, a row each. They keep no state."""

    rows: Rows = field(default_factory=lambda: Rows([], [], [], []))
    weights: dict[str, list[float]] = field(default_factory=dict)  # of each row of what is sent, by its name
    summed: Tensors = field(default_factory=dict)  # the rows of what is sent and of the buffers "b", so weighted


def grouped(rows: Rows, sent: Tensors, buffers: Tensors, algorithm: Algorithm) -> Group:
    """A group and its sums: in the model's precision, for groups are equal to `serial` up to rounding."""
    group = Group(rows.tasks[0], sent, buffers, rows=rows)
    for name, stacked in sent.items():
        each = {pair: algorithm.weight(name, *pair) for pair in set(rows.pairs())}
        group.weights[name] = [each[pair] for pair in rows.pairs()]
        group.summed[name] = torch.tensor(group.weights[name], dtype=stacked.dtype) @ stacked
    if buffers:
        group.summed["b"] = torch.tensor(rows.samples, dtype=buffers["b"].dtype) @ buffers["b"]
    return group
