"""What engines with workers of their own have in common: who is given which tasks, and what if a worker is lost.

Tasks are handed out in their order; results are given back in their order. A worker that dies, or does not answer
in time, is replaced, and what it had been given is done again.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from fedrecall.client.partial_sums import Contribution, Result
from fedrecall.client.predictions import EvaluateResult
from fedrecall.client.tasks import Task, TrainTask
from fedrecall.client.update import Missing, Update
from fedrecall.device import CPU, Device
from fedrecall.engines.answering import Message
from fedrecall.engines.engine import Engine
from fedrecall.engines.parcels import BOXES, InOrder, Parcel
from fedrecall.errors import ClientError, InputError, WriteError
from fedrecall.vector import Tensors

MOST_DEATHS = 3  # of workers on one task, before the run is stopped
START = 300.0  # seconds for a worker to begin: it imports torch and the user's code, perhaps on a busy machine
PARCELS = 4  # for each worker in a round at least, so that none idles at its end
PARCEL_BYTES = 8 * 2**20


class GoneError(Exception):
    """A worker has ended; its words say how."""


@dataclass(eq=False)
class Member:
    """A worker and what it was given to do."""

    number: int  # among all that were ever started
    deadline: float  # when it should have begun, or its first parcel should be done
    device: Device = CPU
    parcels: deque[Parcel] = field(default_factory=deque)  # in the order in which it works on them
    ready: bool = False  # it has said that it has begun
    hung: bool = False  # its first parcel was not done in time, and it was killed


class Work(Protocol):
    """One call of an engine: what waits, what is done, and what can be given back."""

    def over(self) -> bool: ...

    def waiting(self) -> int:
        """How many parcels nobody has been given."""

    def next(self, worker: int) -> Parcel | None: ...

    def done(self, parcel: Parcel, results: Any) -> None: ...

    def lost(self, parcel: Parcel) -> None: ...

    def ready(self) -> Iterator[Result]: ...


M = TypeVar("M", bound=Member)


class WorkerPool(Engine, Generic[M]):
    """Hands out tasks to members; how these are reached is a subclass's."""

    replaces_workers = True
    in_this_process = False
    at_once: ClassVar[int] = 1  # parcels that a member may have: the one it works on, and those that wait there
    client_timeout: float | None = None

    def _begin(self) -> None:
        self._members: list[M] = []
        self._deaths: dict[Task, Counter[str]] = {}
        self._vector_bytes = 0
        self._most = self.at_once  # parcels for a member now: one, while it is to be found out which task kills

    @abstractmethod
    def _fill(self) -> None:
        """Start as many workers as are missing."""

    @abstractmethod
    def _send(self, member: M, parcel: Parcel) -> None: ...

    @abstractmethod
    def _wait(self, members: Sequence[M], seconds: float | None) -> list[M]:
        """Those that have sent something, or have ended, as soon as there is one."""

    @abstractmethod
    def _message(self, member: M) -> Message:
        """What a member has sent; a `GoneError` if it has ended."""

    @abstractmethod
    def _unpack(self, parcel: Parcel, extra: Any) -> Any:
        """The results of a parcel, from what came with its message."""

    @abstractmethod
    def _kill(self, member: M) -> None:
        """End one whose time is up."""

    @abstractmethod
    def _bury(self, member: M) -> None:
        """Leave nothing of one that has ended."""

    @abstractmethod
    def _silent(self, member: M) -> None:
        """One has not begun in time."""

    def _takes_tasks(self, member: M) -> bool:
        return True

    def publish(self, round: int, server: Tensors, buffers: Tensors) -> None:
        self._vector_bytes = sum(tensor.nbytes for tensor in server.values())

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        for result in self._lent(list(tasks)):
            yield result.copy() if isinstance(result, Update) else result

    def train(self, tasks: Sequence[TrainTask], *, looked_at: bool) -> Iterator[Contribution | Missing]:
        for result in self._lent(tasks):
            assert not isinstance(result, EvaluateResult)
            yield result

    def _lent(self, tasks: Sequence[Task]) -> Iterator[Result]:
        """Yield results whose tensors lie in the memory of their worker, for as long as no other is asked for."""
        boxes = BOXES - 1 + self.at_once
        yield from self._through(InOrder(list(tasks), self._parcel_size, boxes, more=self.elsewhere))

    def _through(self, work: Work) -> Iterator[Result]:
        self._most = self.at_once
        while not work.over():
            self._hand_out(work)
            for member in self._answered():
                self._receive(member, work)
            for result in work.ready():
                self._hand_out(work)  # before the caller works on the result
                yield result

    def _parcel_size(self, tasks: int) -> int:
        """Small tasks travel together, because a message costs as much as some steps; large vectors go alone."""
        return max(1, min(tasks // (PARCELS * self.workers), PARCEL_BYTES // max(self._vector_bytes, 1)))

    def _hand_out(self, work: Work) -> None:
        """First to those that have nothing. The last parcels, one for each worker, are kept for whoever is done:
        behind another they might wait for a slow worker while the others have nothing to do."""
        for had in range(self._most):
            for member in self._members:
                if had and work.waiting() <= len(self._members):
                    return
                if len(member.parcels) == had and self._takes_tasks(member):
                    self._give(member, work.next(member.number))

    def _give(self, member: M, parcel: Parcel | None) -> None:
        if parcel is not None:
            self._send(member, parcel)
            member.parcels.append(parcel)
            if len(member.parcels) == 1:
                self._set_deadline(member)

    def _set_deadline(self, member: M) -> None:
        """Of its first parcel, from now on, if the worker has begun; until then it has the time of its start."""
        if member.ready:
            member.deadline = math.inf
            if member.parcels and self.client_timeout is not None:
                member.deadline = time.monotonic() + self.client_timeout * len(member.parcels[0].tasks)

    def _answered(self) -> list[M]:
        """The members that have sent something, or have ended. Those whose time is up are killed."""
        awaited = [member for member in self._members if member.parcels or not member.ready]
        soonest = min((member.deadline for member in awaited), default=math.inf)
        left = None if soonest == math.inf else max(0.0, soonest - time.monotonic())
        answered = self._wait(awaited, left)
        for member in awaited:
            if member not in answered and member.deadline <= time.monotonic():
                if member.ready:
                    self._kill(member)
                    member.deadline, member.hung = math.inf, True
                else:
                    self._silent(member)
        return answered

    def _receive(self, member: M, work: Work) -> None:
        """Take what a worker has sent. If it is dead, its tasks are the next to be run, by others."""
        try:
            kind, what, extra = self._message(member)
        except GoneError as gone:
            self._bury(member)
            self._note_death(member, str(gone))
            for lost in member.parcels:
                work.lost(lost)
            self._fill()
            return
        if kind == "again":  # it was told something else instead, and will answer that
            return
        if kind == "ready":
            member.ready = True
            self._set_deadline(member)
            self._joined(member, extra)
            return
        parcel = self._take_first(member)
        if kind == "unwritten":
            raise WriteError(extra)
        if kind == "refused":
            raise InputError(extra)
        if kind == "failed":
            self.failed = what
            where = f"{what} failed in a worker process" if what else "a worker process could not begin"
            raise ClientError(f"{where}:\n\n{extra.rstrip()}")
        assert parcel is not None
        work.done(parcel, self._unpack(parcel, extra))

    def _take_first(self, member: M) -> Parcel | None:
        """The parcel that a worker has answered. The time of the one behind it begins."""
        parcel = member.parcels.popleft() if member.parcels else None
        self._set_deadline(member)
        return parcel

    def _joined(self, member: M, extra: Any) -> None:
        """A worker has begun, and has this to say."""

    def _note_death(self, member: M, how: str) -> None:
        """It counts if only one task can be the reason. Who hangs is in the first parcel; who ends the process may
        be in any, because the answer to the first may have been lost with it. What is lost is run again one by
        one, with nothing waiting behind it: so the one that kills is found."""
        suspects = list(member.parcels)[: 1 if member.hung else None]
        if suspects:
            self._most = 1
        if member.ready and len(suspects) == 1 and len(suspects[0].tasks) == 1:
            died = f"ended its worker process {{}} ({how})"
            hung = f"did not answer for {self.client_timeout} s {{}} (execution.client_timeout)"
            self._count(suspects[0].tasks[0], hung if member.hung else died)

    def _count(self, task: Task, death: str) -> None:
        deaths = self._deaths.setdefault(task, Counter())
        deaths[death] += 1
        if deaths.total() == MOST_DEATHS:
            self.failed = task
            how = [death.format("once" if count == 1 else f"{count} times") for death, count in deaths.items()]
            raise ClientError(f"{task} {' and '.join(how)}")
