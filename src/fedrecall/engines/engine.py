"""The seam between the round loop and whatever runs its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from fedrecall.client.work import Job, Result, Task
from fedrecall.data.federation import Federation
from fedrecall.runs.client_states import ClientStore
from fedrecall.vector import Tensors


class Engine(Protocol):
    """Runs tasks where the data lives."""

    name: str
    workers: int
    failed: Task | None  # whose work raised what `run` raises

    def open(self, job: Job, federation: Federation, store: ClientStore) -> None: ...

    def publish(self, round: int, server: Tensors, buffers: Tensors) -> None:
        """What the tasks that follow start from or evaluate."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """The results, in the order of the tasks. Their tensors are good until the next result is asked for."""

    def close(self) -> None: ...
