"""Tasks handed out in parcels, their results on the way back, and given back in the order of the tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch import Tensor

from fedrecall.client.predictions import EvaluateResult
from fedrecall.client.tasks import Task, TrainTask
from fedrecall.client.update import Update
from fedrecall.vector import Tensors

BOXES = 2  # of a worker: one that it fills, and one whose results wait for their turn
Answer = Update | EvaluateResult  # of one task

# Of each result what is no vector, and whose the rows of each stack are.
Rest = tuple[list[tuple[Any, ...]], dict[str, list[int]]]
Stacks = dict[str, list[Tensor]]


@dataclass
class Parcel:
    """Some tasks that one worker runs, one after the other."""

    places: list[int]  # of its tasks among all
    tasks: list[Task]
    worker: int = -1  # who runs them
    box: int = -1  # in which of this worker's boxes their results lie


class InOrder:
    """One call of an engine: what waits, what is done, and whose turn it is.

    One of a worker's boxes, a place in shared memory or only a number, holds the vectors of a parcel's results
    from when it is handed out until all of them were given back. None waits for ever: the lowest parcel is handed
    out first, and when one is lost with its worker, there is a new worker, whose boxes are free. Where there may
    be no room for a new one, the parcel whose turn it is gets `more` boxes.
    """

    def __init__(
        self, tasks: list[Task], parcel_size: Callable[[int], int], boxes: int = BOXES, *, more: bool = False
    ) -> None:
        size = parcel_size(len(tasks))
        starts = range(0, len(tasks), size)
        parts = [list(range(start, min(start + size, len(tasks)))) for start in starts]
        self._waiting = deque(Parcel(places, [tasks[place] for place in places]) for places in parts)
        self._finished: dict[int, tuple[Answer, Parcel]] = {}
        self._held: dict[tuple[int, int], int] = {}  # results not yet given back, by worker and box
        self._free: dict[int, list[int]] = {}  # boxes, by worker
        self._boxes, self._more = boxes, count(boxes) if more else None
        self._total, self._expected = len(tasks), 0

    def over(self) -> bool:
        return self._expected == self._total

    def waiting(self) -> int:
        return len(self._waiting)

    def next(self, worker: int) -> Parcel | None:
        """The next parcel for a worker, if one waits and the worker has a place for its results."""
        free = self._free.setdefault(worker, list(range(self._boxes)))
        if not self._waiting:
            return None
        if not free:
            if self._more is None or self._waiting[0].places[0] != self._expected:
                return None
            free.append(next(self._more))
        parcel = self._waiting.popleft()
        parcel.worker, parcel.box = worker, free.pop()
        return parcel

    def done(self, parcel: Parcel, results: list[Answer]) -> None:
        self._held[parcel.worker, parcel.box] = len(results)
        for place, result in zip(parcel.places, results):
            self._finished[place] = result, parcel

    def lost(self, parcel: Parcel) -> None:
        """To be run again, one by one, by others: its worker is gone."""
        singly = [Parcel([place], [task]) for place, task in zip(parcel.places, parcel.tasks)]
        self._waiting = deque(sorted([*singly, *self._waiting], key=lambda waiting: waiting.places[0]))

    def ready(self) -> Iterator[Answer]:
        """The results whose turn it is."""
        while self._expected in self._finished:
            result, parcel = self._finished.pop(self._expected)
            yield result
            self._expected += 1
            self._held[parcel.worker, parcel.box] -= 1
            if not self._held[parcel.worker, parcel.box]:
                self._free[parcel.worker].append(parcel.box)


def stacked(results: list[Answer]) -> tuple[Rest, Stacks]:
    """A parcel's results for another process: what is no vector, and vectors of one name as one stack."""
    owners, stacks = dict[str, list[int]](), Stacks()
    for at, result in enumerate(results):
        if isinstance(result, EvaluateResult):
            continue
        for kind, tensors in (("sent", result.sent), ("buffers", result.buffers)):
            for name, tensor in tensors.items():
                owners.setdefault(f"{kind}.{name}", []).append(at)
                stacks.setdefault(f"{kind}.{name}", []).append(tensor)
    return ([result.scalars() for result in results], owners), stacks


def unstacked(tasks: list[Task], rest: Rest, stacks: Tensors) -> list[Answer]:
    scalars, owners = rest
    vectors: list[dict[str, Tensors]] = [{"sent": {}, "buffers": {}} for _ in tasks]
    for key, stack in stacks.items():
        kind, _, name = key.partition(".")
        for at, tensor in zip(owners[key], stack.unbind()):
            vectors[at][kind][name] = tensor
    return [
        Update(task, vectors[at]["sent"], vectors[at]["buffers"], *scalars[at])
        if isinstance(task, TrainTask)
        else EvaluateResult(task, *scalars[at])
        for at, task in enumerate(tasks)
    ]
