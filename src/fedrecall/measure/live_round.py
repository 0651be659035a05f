"""A round while it is played, and those parts of a run that see it so."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall.client.partial_sums import Contribution
from fedrecall.client.sums import UpdateGeometry
from fedrecall.client.tasks import TrainTask
from fedrecall.engines.engine import Engine
from fedrecall.runs.client_states import StateTable
from fedrecall.vector import Tensors

Event = tuple[str, str]  # its kind, and a sentence


@dataclass
class LiveRound:
    """All that is known of a round so far."""

    number: int  # counted from 1
    lr: float
    asked: list[int]  # the clients of the round
    silent: int  # how many of these do not answer
    tasks: list[TrainTask]  # of those that answer, in the order of the sum
    engine: Engine
    states: StateTable
    sent: Tensors  # what the clients are sent
    server: Tensors  # the server's state: before the round and, once it is made, after it
    buffers: Tensors  # with it
    updates: UpdateGeometry = field(default_factory=UpdateGeometry)  # where that is asked for
    dropped: list[int] = field(default_factory=list)  # clients whose update was not finite
    missing: list[int] = field(default_factory=list)  # clients that gave nothing back
    line: dict[str, Any] = field(default_factory=dict)  # of metrics.jsonl
    by_client: dict[str, Any] = field(default_factory=dict)  # the line of clients.jsonl, if there is one
    matrices: dict[str, np.ndarray] | None = None  # of a probed round
    events: list[Event] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # of the round and its parts


class Observer:
    """A part of a run that sees its rounds live: it may add metrics, ask clients for more and run evaluations."""

    @property
    def wants_each(self) -> bool:
        """Whether it looks at each client's update; else an engine may add some up where they were made."""
        return False

    def started(self, recipe: dict[str, Any], folder: Path) -> None:
        """The run begins, or is resumed."""

    def before(self, live: LiveRound) -> None:
        """The model is published, and nobody has trained yet."""

    def result(self, live: LiveRound, contribution: Contribution) -> None:
        """A client, or several together, gave this back; it is added to the sums."""

    def after(self, live: LiveRound) -> None:
        """The server's new state is made, and `live.line` has what was measured so far."""

    def finished(self, summary: dict[str, Any]) -> None:
        """The run has ended, and this is its summary."""
