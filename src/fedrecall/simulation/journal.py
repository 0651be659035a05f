"""What is written down while the rounds of a run go by."""

from __future__ import annotations

import itertools
from typing import Any

from fedrecall.errors import DivergedError
from fedrecall.runs.folder import RunFolder

PARTS = ("train", "aggregate", "evaluate")  # of a round's time


class Journal:
    """Lines of metrics and times, and the events that a user should know of."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.warnings: list[str] = []
        self.dropped_updates = 0

    def warn(self, t: int, warning: str | None) -> None:
        """Once for each thing that the user should know."""
        if warning and warning not in self.warnings:
            self.warnings.append(warning)
            self.folder.event("warning", t, warning)

    def dropped(self, t: int, clients: list[int], *, stop: bool) -> list[int]:
        """Clients that are left out of a round; with `stop` there must be none."""
        for client in clients:
            message = f"the update of client {client} in round {t} is not finite"
            if stop:
                raise DivergedError(f"{message} (bad_updates is 'stop')")
            self.folder.event("dropped", t, message)
        self.dropped_updates += len(clients)
        return clients

    def record(self, line: dict[str, Any], by_client: dict[str, Any], clock: list[float]) -> None:
        """A round that is done."""
        parts = dict(zip(PARTS, (b - a for a, b in itertools.pairwise(clock))))
        seconds = {key: round(value, 6) for key, value in {"seconds": clock[-1] - clock[0], **parts}.items()}
        self.folder.append("metrics.jsonl", line)
        if by_client:
            self.folder.append("clients.jsonl", by_client)
        self.folder.append("timings.jsonl", {"round": line["round"], **seconds})
