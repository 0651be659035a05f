"""Watchers, which only observe the rounds of a run: trackers, progress, a user's callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from fedrecall.client.update import Update
from fedrecall.core.vector import Tensors
from fedrecall.measure.live_round import LiveRound


class Round:
    """A round as watchers see it; changes to it do not affect the run."""

    def __init__(self, live: LiveRound) -> None:
        self._live = live

    @property
    def number(self) -> int:
        """The number of the round, counted from 1."""
        return self._live.number

    @property
    def lr(self) -> float:
        """The local learning rate of the round."""
        return self._live.lr

    @property
    def clients(self) -> list[int]:
        """The clients that train, in the order of the sum."""
        return [task.client for task in self._live.tasks]

    @property
    def dropped(self) -> list[int]:
        """The clients whose update was not finite."""
        return list(self._live.dropped)

    @property
    def missing(self) -> list[int]:
        """The clients that returned no update."""
        return list(self._live.missing)

    @property
    def line(self) -> dict[str, Any]:
        """The round's line of metrics.jsonl, as far as measured."""
        return dict(self._live.line)

    @property
    def by_client(self) -> dict[str, Any]:
        """The round's line of clients.jsonl; empty if there is none."""
        return dict(self._live.by_client)

    @property
    def sent(self) -> Tensors:
        """The tensors that the clients are sent."""
        return {name: tensor.clone() for name, tensor in self._live.sent.items()}

    @property
    def server(self) -> Tensors:
        """The server's state before the round and, in `after`, the new one."""
        return {name: tensor.clone() for name, tensor in self._live.server.items()}

    @property
    def buffers(self) -> Tensors:
        """The model's buffers that belong to `server`."""
        return {name: tensor.clone() for name, tensor in self._live.buffers.items()}


class Watcher:
    """Observes rounds without changing their result; override the methods that you need.

    >>> class Losses(Watcher):
    ...     def after(self, round: Round) -> None:
    ...         print(round.number, round.line["train_loss"])
    """

    recipe_section: ClassVar[str] = "trackers"

    @property
    def wants_each(self) -> bool:
        """Return whether each client's update is needed; else an engine may sum updates in its workers."""
        return type(self).result is not Watcher.result

    def started(self, recipe: dict[str, Any], folder: Path) -> None:
        """Called when the run begins or is resumed; `recipe` has every key, `folder` has the run's files."""

    def before(self, round: Round) -> None:
        """Called when the model is published, before any client trains."""

    def result(self, round: Round, update: Update) -> None:
        """Called with a client's update, which is already in the sums."""

    def after(self, round: Round) -> None:
        """Called when the round is completed and recorded."""

    def finished(self, summary: dict[str, Any]) -> None:
        """Called when the run has ended; `summary` is the content of summary.json."""
