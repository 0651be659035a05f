"""Watchers, including user callbacks, as observers of a run. An exception in one names it and the round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedrecall.backend.torch_state import outer_settings
from fedrecall.client.partial_sums import Contribution
from fedrecall.client.update import Update
from fedrecall.errors import InputError, short_repr
from fedrecall.measure.live_round import LiveRound, Observer
from fedrecall.measure.watcher import Round, Watcher
from fedrecall.trackers import Tracker

Callback = Watcher | Tracker | Callable[[dict[str, Any]], object]  # a plain function receives each line of metrics


class LineCallback(Watcher):
    """Passes each line of metrics to a function."""

    def __init__(self, function: Callable[[dict[str, Any]], object]) -> None:
        self.function = function

    def after(self, round: Round) -> None:
        self.function(round.line)


def watchers_of(callbacks: Iterable[Callback]) -> list[Watcher | Tracker]:
    """Return the callbacks, functions as watchers; raise an `InputError` for anything else."""
    found: list[Watcher | Tracker] = []
    for callback in callbacks:
        if isinstance(callback, Tracker):
            callback.check()
        elif not isinstance(callback, Watcher) and not callable(callback):
            raise InputError(
                f"a callback is {short_repr(callback)}; expected a Watcher or a function of a line of metrics"
            )
        found.append(callback if isinstance(callback, Watcher | Tracker) else LineCallback(callback))
    return found


class Watching(Observer):
    """Passes the rounds of a run to a watcher."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher

    @property
    def wants_each(self) -> bool:
        return self.watcher.wants_each

    def started(self, recipe: dict[str, Any], folder: Path) -> None:
        with self._named("as the run began"), outer_settings():
            self.watcher.started(recipe, folder)

    def before(self, live: LiveRound) -> None:
        with self._named(f"in round {live.number}"), outer_settings():
            self.watcher.before(Round(live))

    def result(self, live: LiveRound, contribution: Contribution) -> None:
        if isinstance(contribution, Update):
            with self._named(f"in round {live.number}"):  # torch stays fixed: other clients may be training
                self.watcher.result(Round(live), contribution)

    def after(self, live: LiveRound) -> None:
        with self._named(f"in round {live.number}"), outer_settings():
            self.watcher.after(Round(live))

    def finished(self, summary: dict[str, Any]) -> None:
        with self._named("as the run ended"), outer_settings():
            self.watcher.finished(summary)

    @contextmanager
    def _named(self, when: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            own = self.watcher.function if isinstance(self.watcher, LineCallback) else self.watcher
            name = getattr(own, "__qualname__", type(own).__qualname__)
            error.add_note(f"(in the callback {name!r}, {when})")
            raise
