"""Whatever looks at the rounds of a run: metrics, probes, records, progress, trackers, a user's callbacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedrecall.client.partial_sums import Contribution
from fedrecall.client.sums import Updates
from fedrecall.client.tasks import TrainTask
from fedrecall.engines.engine import Engine
from fedrecall.runs.client_states import StateTable
from fedrecall.vector import Tensors


@dataclass
class Round:
    """A round as it goes by, for those who watch it."""

    number: int  # counted from 1
    lr: float
    tasks: list[TrainTask]  # of the round's clients, in the order of the sum
    engine: Engine
    states: StateTable
    sent: Tensors  # what the clients are sent
    server: Tensors  # the server's state: before the round and, once it is made, after it
    buffers: Tensors  # with it
    updates: Updates = field(default_factory=Updates)  # how they lie, where that is looked at
    dropped: list[int] = field(default_factory=list)  # clients whose update was not finite
    missing: list[int] = field(default_factory=list)  # clients that gave nothing back
    line: dict[str, Any] = field(default_factory=dict)  # of metrics.jsonl
    by_client: dict[str, Any] = field(default_factory=dict)  # the line of clients.jsonl, if there is one


class Watcher:
    """Looks at rounds, and changes nothing of their result. Override what you want to see.

    >>> class Losses(Watcher):
    ...     def after(self, round: Round) -> None:
    ...         print(round.number, round.line["train_loss"])
    """

    @property
    def wants_each(self) -> bool:
        """Does it look at each client's result? Else an engine may add some up where they were made."""
        return type(self).result is not Watcher.result

    def before(self, round: Round) -> None:
        """The model is published, and nobody has trained yet."""

    def result(self, round: Round, result: Contribution) -> None:
        """A client (or a group of them) gave this back; it is added to the sums."""

    def after(self, round: Round) -> None:
        """The server's new state is made, and `round.line` has what was measured so far."""
