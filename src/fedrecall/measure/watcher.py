"""Whatever only looks at the rounds of a run: trackers, progress, a user's callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from fedrecall.client.update import Update
from fedrecall.measure.live_round import LiveRound
from fedrecall.vector import Tensors


class Round:
    """A round as watchers see it. What they change in it changes nothing of the run."""

    def __init__(self, live: LiveRound) -> None:
        self._live = live

    @property
    def number(self) -> int:
        """Counted from 1."""
        return self._live.number

    @property
    def lr(self) -> float:
        """The local rate of the round."""
        return self._live.lr

    @property
    def clients(self) -> list[int]:
        """The clients that train, in the order of the sum."""
        return [task.client for task in self._live.tasks]

    @property
    def dropped(self) -> list[int]:
        """Clients whose update was not finite."""
        return list(self._live.dropped)

    @property
    def missing(self) -> list[int]:
        """Clients that gave nothing back."""
        return list(self._live.missing)

    @property
    def line(self) -> dict[str, Any]:
        """The round's line of metrics.jsonl, as far as it is measured."""
        return dict(self._live.line)

    @property
    def by_client(self) -> dict[str, Any]:
        """The round's line of clients.jsonl; empty if there is none."""
        return dict(self._live.by_client)

    @property
    def sent(self) -> Tensors:
        """What the clients are sent."""
        return {name: tensor.clone() for name, tensor in self._live.sent.items()}

    @property
    def server(self) -> Tensors:
        """The server's state: before the round and, in `after`, the new one."""
        return {name: tensor.clone() for name, tensor in self._live.server.items()}

    @property
    def buffers(self) -> Tensors:
        """The model's buffers with that state."""
        return {name: tensor.clone() for name, tensor in self._live.buffers.items()}


class Watcher:
    """Looks at rounds, and changes nothing of their result. Override what you want to see.

    >>> class Losses(Watcher):
    ...     def after(self, round: Round) -> None:
    ...         print(round.number, round.line["train_loss"])
    """

    recipe_section: ClassVar[str] = "trackers"

    @property
    def wants_each(self) -> bool:
        """Whether it looks at each client's update; else an engine may add some up where they were made."""
        return type(self).result is not Watcher.result

    def started(self, recipe: dict[str, Any], folder: Path) -> None:
        """The run begins, or is resumed; `recipe` has every key, `folder` is where its files are."""

    def before(self, round: Round) -> None:
        """The model is published, and nobody has trained yet."""

    def result(self, round: Round, update: Update) -> None:
        """A client gave this back; it is added to the sums."""

    def after(self, round: Round) -> None:
        """The round is done and saved."""

    def finished(self, summary: dict[str, Any]) -> None:
        """The run has ended; `summary` is what summary.json says of it."""
