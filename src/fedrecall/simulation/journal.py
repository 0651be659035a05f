"""The journal of a run: its metrics, timings and events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedrecall.measure.live_round import LiveRound
from fedrecall.runs import files
from fedrecall.runs.folder import RunFolder


class Journal:
    """Writes the lines of each round and the events that a user should know of."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.warnings: list[str] = []
        self.dropped_updates = 0
        self.missing_clients = 0
        self._live: LiveRound | None = None  # a round that is not recorded yet

    def recall(self, events: Sequence[Mapping[str, Any]], of_recipe: Iterable[str]) -> None:
        """Restore the warnings and counts of a resumed run.

        `of_recipe` replaces the warnings from before round 1, which may depend on the number of rounds.
        """
        known = {event.get("message") for event in events}
        self.warnings = list(of_recipe)
        for warning in self.warnings:
            if warning not in known:
                self.folder.event("warning", 0, warning)
        for event in events:
            if event.get("event") == "warning" and event["round"] > 0:
                self.warnings.append(str(event.get("message")))
            self._count(str(event.get("event")))

    def warn(self, t: int, warning: str) -> None:
        """Record a warning, once."""
        if warning not in self.warnings:
            self.warnings.append(warning)
            self.folder.event("warning", t, warning)

    def begin(self, live: LiveRound) -> None:
        """Begin a round; its events are written even if it does not finish."""
        self._live = live

    def record(self, live: LiveRound) -> None:
        self.end()
        if live.matrices is not None:
            self.folder.save_forgetting(live.number, live.matrices)
        self.folder.append(files.METRICS, live.line)
        if live.by_client:
            self.folder.append(files.CLIENTS, live.by_client)
        rounded = {key: float(f"{value:.6f}") for key, value in live.seconds.items()}
        self.folder.append(files.TIMINGS, {"round": live.number, **rounded})

    def end(self) -> None:
        """Write the events of the current round."""
        live, self._live = self._live, None
        if live is None:
            return
        for kind, message in live.events:
            if kind == "warning":
                self.warn(live.number, message)
            else:
                self._count(kind)
                self.folder.event(kind, live.number, message)

    def all_warnings(self) -> list[str]:
        """Return the warnings, with one sentence each for all dropped updates and all missing clients."""
        warnings, missing = list(self.warnings), self.missing_clients
        if self.dropped_updates:
            warnings.append(f"{self.dropped_updates} updates were not finite and left out: see {files.EVENTS}")
        if missing:
            warnings.append(f"clients were left out {missing} times because nothing came from them: see {files.EVENTS}")
        return warnings

    def _count(self, kind: str) -> None:
        self.dropped_updates += kind == "dropped"
        self.missing_clients += kind == "missing"
