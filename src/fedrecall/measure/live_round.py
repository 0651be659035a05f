"""A round while it is played, and the observers of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall.client.partial_sums import Contribution
from fedrecall.client.sums import UpdateGeometry
from fedrecall.client.tasks import TrainTask
from fedrecall.core.vector import Tensors
from fedrecall.engines.engine import Engine
from fedrecall.runs.client_states import StateTable

Event = tuple[str, str]  # its kind and message


@dataclass
class LiveRound:
    """The record of a round so far."""

    number: int  # counted from 1
    lr: float
    asked: list[int]  # the cohort
    silent: int  # the number of these that do not answer
    tasks: list[TrainTask]  # of those that answer, in the order of the sum
    engine: Engine
    states: StateTable
    sent: Tensors  # the tensors that the clients are sent
    server: Tensors  # the server's state before the round, after aggregation the new one
    buffers: Tensors  # that belong to `server`
    stragglers: int = 0  # clients that were too slow for all their steps
    simulated_seconds: float | None = None  # of the round, if there is a simulated clock
    updates: UpdateGeometry = field(default_factory=UpdateGeometry)  # if tracked
    dropped: list[int] = field(default_factory=list)  # clients whose update was not finite
    missing: list[int] = field(default_factory=list)  # clients that returned no update
    line: dict[str, Any] = field(default_factory=dict)  # of metrics.jsonl
    by_client: dict[str, Any] = field(default_factory=dict)  # the line of clients.jsonl, if there is one
    matrices: dict[str, np.ndarray] | None = None  # of a probed round
    events: list[Event] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # of the round and its parts


class Observer:
    """A part of a run that sees its rounds live: it may add metrics, change tasks and run evaluations."""

    @property
    def wants_each(self) -> bool:
        """Return whether each client's update is needed; else an engine may sum updates in its workers."""
        return False

    def started(self, recipe: dict[str, Any], folder: Path) -> None:
        """Called when the run begins or is resumed."""

    def before(self, live: LiveRound) -> None:
        """Called when the model is published, before any client trains."""

    def result(self, live: LiveRound, contribution: Contribution) -> None:
        """Called with the contribution of one or several clients, which is already in the sums."""

    def after(self, live: LiveRound) -> None:
        """Called after aggregation; `live.line` has the metrics so far."""

    def finished(self, summary: dict[str, Any]) -> None:
        """Called when the run has ended."""
