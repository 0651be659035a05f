"""Chunks of tasks, which are sent to workers and whose results are yielded in task order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from torch import Tensor

from fedrecall.client.predictions import EvaluateResult
from fedrecall.client.tasks import Task, TrainTask
from fedrecall.client.update import Update
from fedrecall.core.vector import Tensors

SLOTS = 2  # result slots of a worker: one being filled, and one whose results wait for their turn
TaskResult = Update | EvaluateResult
Stacks = dict[str, list[Tensor]]


class ResultScalars(NamedTuple):
    """The results of a chunk without their vectors."""

    scalars: list[tuple[Any, ...]]  # `scalars()` of each result
    owners: dict[str, list[int]]  # by stack: the index of each row's result


@dataclass
class TaskChunk:
    """Tasks that one worker runs one after the other."""

    places: list[int]  # indices of its tasks among all tasks
    tasks: list[Task]
    worker: int = -1  # number of the worker that runs it
    slot: int = -1  # the worker's slot that holds its results


class OrderedTasks:
    """One call of an engine: hands out chunks of its tasks, yields the results in task order.

    A worker has a few result slots: pieces of shared memory, or just numbers. A chunk occupies one slot until all
    of its results have been yielded. This cannot deadlock: the lowest chunk is handed out first, and a chunk that
    is lost with its worker goes to a new worker, whose slots are free. If there may be no room for a new worker,
    `more` adds a slot for the chunk that is next in order.
    """

    def __init__(
        self, tasks: list[Task], chunk_size: Callable[[int], int], slots: int = SLOTS, *, more: bool = False
    ) -> None:
        size = chunk_size(len(tasks))
        starts = range(0, len(tasks), size)
        parts = [list(range(start, min(start + size, len(tasks)))) for start in starts]
        self._waiting = deque(TaskChunk(places, [tasks[place] for place in places]) for places in parts)
        self._finished: dict[int, tuple[TaskResult, TaskChunk]] = {}
        self._held: dict[tuple[int, int], int] = {}  # results not yet yielded, by worker and slot
        self._free: dict[int, list[int]] = {}  # free slots, by worker
        self._slots, self._more = slots, count(slots) if more else None
        self._total, self._expected = len(tasks), 0

    def over(self) -> bool:
        return self._expected == self._total

    def waiting(self) -> int:
        return len(self._waiting)

    def next(self, worker: int) -> TaskChunk | None:
        """Return the next chunk for a worker; None if no chunk or no result slot is left."""
        free = self._free.setdefault(worker, list(range(self._slots)))
        if not self._waiting:
            return None
        if not free:
            if self._more is None or self._waiting[0].places[0] != self._expected:
                return None
            free.append(next(self._more))
        chunk = self._waiting.popleft()
        chunk.worker, chunk.slot = worker, free.pop()
        return chunk

    def done(self, chunk: TaskChunk, results: list[TaskResult]) -> None:
        self._held[chunk.worker, chunk.slot] = len(results)
        for place, result in zip(chunk.places, results):
            self._finished[place] = result, chunk

    def lost(self, chunk: TaskChunk) -> None:
        """Hand out the tasks of a lost worker again, one by one."""
        singles = [TaskChunk([place], [task]) for place, task in zip(chunk.places, chunk.tasks)]
        self._waiting = deque(sorted([*singles, *self._waiting], key=lambda waiting: waiting.places[0]))

    def ready(self) -> Iterator[TaskResult]:
        """Yield the results that are next in task order."""
        while self._expected in self._finished:
            result, chunk = self._finished.pop(self._expected)
            yield result
            self._expected += 1
            self._held[chunk.worker, chunk.slot] -= 1
            if not self._held[chunk.worker, chunk.slot]:
                self._free[chunk.worker].append(chunk.slot)


def stack_results(results: list[TaskResult]) -> tuple[ResultScalars, Stacks]:
    """Split the results of a chunk into scalars and one stack of vectors per name."""
    owners, stacks = dict[str, list[int]](), Stacks()
    for at, result in enumerate(results):
        if isinstance(result, EvaluateResult):
            continue
        for kind, tensors in (("sent", result.sent), ("buffers", result.buffers)):
            for name, tensor in tensors.items():
                owners.setdefault(f"{kind}.{name}", []).append(at)
                stacks.setdefault(f"{kind}.{name}", []).append(tensor)
    return ResultScalars([result.scalars() for result in results], owners), stacks


def unstack_results(tasks: list[Task], parts: ResultScalars, stacks: Tensors) -> list[TaskResult]:
    """Rebuild the results of a chunk from their parts; without stacks, they have no vectors."""
    vectors: list[dict[str, Tensors]] = [{"sent": {}, "buffers": {}} for _ in tasks]
    for key, stack in stacks.items():
        kind, _, name = key.partition(".")
        for at, tensor in zip(parts.owners[key], stack.unbind()):
            vectors[at][kind][name] = tensor
    return [
        Update(task, vectors[at]["sent"], vectors[at]["buffers"], *parts.scalars[at])
        if isinstance(task, TrainTask)
        else EvaluateResult(task, *parts.scalars[at])
        for at, task in enumerate(tasks)
    ]
