"""A user's callbacks as watchers of a run: an exception in one says which it was, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fedrecall.client.partial_sums import Contribution
from fedrecall.errors import InputError, short_repr
from fedrecall.measure.watcher import Round, Watcher
from fedrecall.torch_state import given_back

Callback = Watcher | Callable[[dict[str, Any]], object]  # a plain function is shown each line of metrics


class UserWatcher(Watcher):
    """Hands everything on to the user's watcher."""

    def __init__(self, callback: Callback) -> None:
        if not isinstance(callback, Watcher) and not callable(callback):
            raise InputError(
                f"a callback is {short_repr(callback)}; a Watcher or a function of a line of metrics was expected"
            )
        self.callback = callback

    @property
    def wants_each(self) -> bool:
        return isinstance(self.callback, Watcher) and self.callback.wants_each

    def before(self, round: Round) -> None:
        if isinstance(self.callback, Watcher):
            with self._named(round), given_back():
                self.callback.before(round)

    def result(self, round: Round, result: Contribution) -> None:
        if isinstance(self.callback, Watcher):
            with self._named(round):  # not given back: other clients may be training
                self.callback.result(round, result)

    def after(self, round: Round) -> None:
        with self._named(round), given_back():
            if isinstance(self.callback, Watcher):
                self.callback.after(round)
            else:
                self.callback(round.line)

    @contextmanager
    def _named(self, round: Round) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            name = getattr(self.callback, "__qualname__", type(self.callback).__qualname__)
            error.add_note(f"(in the callback {name!r}, in round {round.number})")
            raise


def user_watchers(callbacks: Iterable[Callback]) -> list[Watcher]:
    return [UserWatcher(callback) for callback in callbacks]
