"""What is written down while the rounds of a run go by."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedrecall.errors import DivergedError
from fedrecall.measure.watcher import Round
from fedrecall.runs import files
from fedrecall.runs.folder import RunFolder

PARTS = ("train", "aggregate", "evaluate")  # of a round's time


class Journal:
    """Lines of metrics and times, and the events that a user should know of."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.warnings: list[str] = []
        self.dropped_updates = 0
        self.missing_clients = 0

    def recall(self, events: Sequence[Mapping[str, Any]], of_recipe: Iterable[str]) -> None:
        """Restore the warnings and counts of a run that is resumed.

        Warnings from before round 1 are about the recipe and may depend on its number of rounds: `of_recipe`
        replaces them.
        """
        known = {event.get("message") for event in events}
        self.warnings = list(of_recipe)
        for warning in self.warnings:
            if warning not in known:
                self.folder.event("warning", 0, warning)
        for event in events:
            if event.get("event") == "warning" and event["round"] > 0:
                self.warnings.append(str(event.get("message")))
            self.dropped_updates += event.get("event") == "dropped"
            self.missing_clients += event.get("event") == "missing"

    def warn(self, t: int, warning: str | None) -> None:
        """Once for each thing that the user should know."""
        if warning and warning not in self.warnings:
            self.warnings.append(warning)
            self.folder.event("warning", t, warning)

    def drop(self, t: int, clients: list[int], *, stop: bool) -> None:
        """Clients that are left out of a round; with `stop` there must be none."""
        for client in clients:
            message = f"the update of client {client} in round {t} is not finite"
            if stop:
                raise DivergedError(f"{message} (bad_updates is 'stop')")
            self.folder.event("dropped", t, message)
        self.dropped_updates += len(clients)

    def miss(self, t: int, client: int, reason: str) -> None:
        """A client that is left out of a round because nothing came from it, or nothing that can be used."""
        self.folder.event("missing", t, f"client {client} is left out of round {t}: {reason}")
        self.missing_clients += 1

    def record(self, round: Round, probe: Mapping[str, np.ndarray] | None, clock: list[float]) -> None:
        """A round that is done; `probe` has its matrices, if it was probed."""
        if probe is not None:
            self.folder.save_forgetting(round.number, probe)
        parts = dict(zip(PARTS, (b - a for a, b in itertools.pairwise(clock))))
        seconds = {"seconds": clock[-1] - clock[0], **parts}
        self.folder.append(files.METRICS, round.line)
        if round.by_client:
            self.folder.append(files.CLIENTS, round.by_client)
        rounded = {key: float(f"{value:.6f}") for key, value in seconds.items()}
        self.folder.append(files.TIMINGS, {"round": round.number, **rounded})
