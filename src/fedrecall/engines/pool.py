"""Base of the engines with workers: hands out tasks in order, yields results in order, replaces workers.

A worker that dies or does not answer in time is replaced, and its tasks are run again.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar

from fedrecall.backend.device import CPU, Device
from fedrecall.client.partial_sums import Contribution, Result
from fedrecall.client.predictions import EvaluateResult
from fedrecall.client.tasks import Task, TrainTask
from fedrecall.client.update import MissingClient, Update
from fedrecall.core.vector import Tensors
from fedrecall.engines.engine import Engine
from fedrecall.engines.messages import Computed, Failed, Message, Ready, Refused, WriteFailed
from fedrecall.engines.task_chunks import SLOTS, OrderedTasks, TaskChunk
from fedrecall.errors import ClientError, InputError, WriteError

MOST_DEATHS = 3  # worker deaths on one task that stop the run
START = 300.0  # seconds for a worker to start: it imports torch and the user's code, perhaps on a busy machine
CHUNKS = 4  # least chunks per worker and round, so that no worker idles at the end
CHUNK_BYTES = 8 * 2**20


class WorkerGoneError(Exception):
    """A worker has ended; the message says how."""


@dataclass(eq=False)
class PoolWorker:
    """A worker of the pool and the chunks that it was given."""

    number: int  # counts all workers ever started
    deadline: float  # for its start, then for its first chunk
    device: Device = CPU
    chunks: deque[TaskChunk] = field(default_factory=deque)  # in the order in which it runs them
    ready: bool = False  # it has started
    hung: bool = False  # it missed the deadline of its first chunk and was killed


class PoolCall(Protocol):
    """One call of an engine: chunks to hand out and results to yield."""

    def over(self) -> bool: ...

    def waiting(self) -> int:
        """Return the number of chunks that are not handed out yet."""

    def next(self, worker: int) -> TaskChunk | None: ...

    def lost(self, chunk: TaskChunk) -> None: ...

    def ready(self) -> Iterator[Result]: ...


M = TypeVar("M", bound=PoolWorker)


class WorkerPool(Engine, Generic[M]):
    """Hands out chunks to members; subclasses start the members and exchange messages with them."""

    replaces_workers = True
    in_this_process = False
    at_once: ClassVar[int] = 1  # chunks that a member may have: one running, the others queued
    client_timeout: float | None = None

    def _begin(self) -> None:
        self._members: list[M] = []
        self._deaths: dict[Task, Counter[str]] = {}
        self._vector_bytes = 0
        self._most = self.at_once  # current limit per member: 1 while searching for a task that kills workers

    @abstractmethod
    def _fill(self) -> None:
        """Start as many workers as are missing."""

    @abstractmethod
    def _send(self, member: M, chunk: TaskChunk) -> None: ...

    @abstractmethod
    def _wait(self, members: Sequence[M], seconds: float | None) -> list[M]:
        """Wait until one of the members has sent something or has ended; return all that have."""

    @abstractmethod
    def _message(self, member: M) -> Message | None:
        """Return the message of a member, None if the subclass handled it; raise `WorkerGoneError` if it has ended."""

    @abstractmethod
    def _finish(self, work: PoolCall, member: M, chunk: TaskChunk, message: Computed) -> None:
        """Pass a member's results on to the work."""

    @abstractmethod
    def _kill(self, member: M) -> None:
        """Kill a member that has missed its deadline."""

    @abstractmethod
    def _release(self, member: M) -> None:
        """Release the resources of a dead member."""

    @abstractmethod
    def _start_timed_out(self, member: M) -> None:
        """Handle a member that did not start in time."""

    def _takes_tasks(self, member: M) -> bool:
        return True

    def publish(self, round: int, server: Tensors, buffers: Tensors) -> None:
        self._vector_bytes = sum(tensor.nbytes for tensor in server.values())

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        for result in self._run_without_copy(list(tasks)):
            yield result.copy() if isinstance(result, Update) else result

    def train(self, tasks: Sequence[TrainTask], *, track_updates: bool) -> Iterator[Contribution | MissingClient]:
        for result in self._run_without_copy(tasks):
            assert not isinstance(result, EvaluateResult)
            yield result

    def _run_without_copy(self, tasks: Sequence[Task]) -> Iterator[Result]:
        """Yield results whose tensors are in their worker's memory, valid until the next result is requested."""
        slots = SLOTS - 1 + self.at_once
        yield from self._complete(OrderedTasks(list(tasks), self._chunk_size, slots, more=self.elsewhere))

    def _complete(self, work: PoolCall) -> Iterator[Result]:
        """Yield the results of some work as they become ready, until it is over."""
        self._most = self.at_once
        while not work.over():
            self._hand_out(work)
            for member in self._answered():
                self._receive(member, work)
            for result in work.ready():
                self._hand_out(work)  # before the caller works on the result
                yield result

    def _chunk_size(self, tasks: int) -> int:
        """Return the tasks per chunk: several small ones, because a message costs as much as some steps."""
        return max(1, min(tasks // (CHUNKS * self.workers), CHUNK_BYTES // max(self._vector_bytes, 1)))

    def _hand_out(self, work: PoolCall) -> None:
        """Give chunks to members, idle ones first.

        The last chunks, one per worker, are kept for idle members: queued behind another chunk, they might wait
        for a slow worker while others have nothing to do.
        """
        for had in range(self._most):
            for member in self._members:
                if had and work.waiting() <= len(self._members):
                    return
                if len(member.chunks) == had and self._takes_tasks(member):
                    self._give(member, work.next(member.number))

    def _give(self, member: M, chunk: TaskChunk | None) -> None:
        if chunk is not None:
            self._send(member, chunk)
            member.chunks.append(chunk)
            if len(member.chunks) == 1:
                self._set_deadline(member)

    def _set_deadline(self, member: M) -> None:
        """Set the deadline of a member's first chunk; a member that is still starting keeps its deadline."""
        if member.ready:
            member.deadline = math.inf
            if member.chunks and self.client_timeout is not None:
                member.deadline = time.monotonic() + self.client_timeout * len(member.chunks[0].tasks)

    def _answered(self) -> list[M]:
        """Return the members that have sent something or have ended; kill those that missed their deadline."""
        awaited = [member for member in self._members if member.chunks or not member.ready]
        soonest = min((member.deadline for member in awaited), default=math.inf)
        left = None if soonest == math.inf else max(0.0, soonest - time.monotonic())
        answered = self._wait(awaited, left)
        for member in awaited:
            if member not in answered and member.deadline <= time.monotonic():
                if member.ready:
                    self._kill(member)
                    member.deadline, member.hung = math.inf, True
                else:
                    self._start_timed_out(member)
        return answered

    def _receive(self, member: M, work: PoolCall) -> None:
        """Handle the next message of a member, or its end."""
        try:
            message = self._message(member)
        except WorkerGoneError as gone:
            self._replace(member, work, str(gone))
            return
        if message is None:
            return
        if isinstance(message, Ready):
            member.ready = True
            self._set_deadline(member)
            self._joined(member, message)
            return
        chunk = self._take_first(member)
        match message:
            case WriteFailed(sentence):
                raise WriteError(sentence)
            case Refused(sentence):
                raise InputError(sentence)
            case Failed(task, trace):
                self.failed = task
                where = f"{task} failed in a worker process" if task else "a worker process could not begin"
                raise ClientError(f"{where}:\n\n{trace.rstrip()}")
        assert chunk is not None
        self._finish(work, member, chunk, message)

    def _replace(self, member: M, work: PoolCall, how: str) -> None:
        """Replace a dead worker; its tasks are run next."""
        self._release(member)
        self._note_death(member, how)
        for chunk in member.chunks:
            work.lost(chunk)
        self._fill()

    def _take_first(self, member: M) -> TaskChunk | None:
        """Remove and return the chunk that a member has answered; set the deadline of its next chunk."""
        chunk = member.chunks.popleft() if member.chunks else None
        self._set_deadline(member)
        return chunk

    def _joined(self, member: M, ready: Ready) -> None:
        """Handle the message of a member that has just started."""

    def _note_death(self, member: M, how: str) -> None:
        """Count a death against a task, if only that task can have caused it.

        If the worker hung, the cause is in its first chunk. If its process ended, the cause may be in any chunk,
        because the answer to the first may have been lost too. Lost tasks are run again one by one with nothing
        queued behind them, which identifies the cause.
        """
        suspects = list(member.chunks)[: 1 if member.hung else None]
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
