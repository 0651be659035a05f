"""Worker processes on this machine, one client each at a time: the same bits as `serial`, sooner.

Workers are plain subprocesses, so that a script without a main guard, standard input and a notebook all work.
Tasks are handed out in their order; results are given back in their order. A worker that dies, or does not answer
in time, is replaced, and what it was doing is done again.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Self

import cloudpickle
import torch

from fedrecall.client.work import Job, Result, Task
from fedrecall.data.federation import Federation
from fedrecall.engines.engine import Engine
from fedrecall.engines.processes.batching import InOrder, Parcel, unpack
from fedrecall.engines.processes.connection import Door, receive
from fedrecall.engines.processes.shared_tensors import Box, Boxes, Header
from fedrecall.errors import ClientError, InputError, WriteError
from fedrecall.recipe.settings import Execution
from fedrecall.runs.client_states import States
from fedrecall.vector import Tensors

MOST_DEATHS = 3  # of workers on one task, before the run is stopped
GRACE = 10.0  # seconds for an idle worker to end by itself
PARCELS = 4  # for each worker in a round at least, so that none idles at its end
PARCEL_BYTES = 8 * 2**20


@dataclass(eq=False)
class Member:
    """A worker process and what it is doing."""

    process: subprocess.Popen[bytes]
    connection: Connection
    parcel: Parcel | None = None
    ready: bool = False  # it has said that it has begun
    deadline: float = math.inf  # when its parcel should be done
    hung: bool = False  # it was not, and the worker was killed


class Processes(Engine):
    """A pool of workers, started once."""

    name = "processes"
    replaces_workers = True
    in_this_process = False

    def __init__(self, workers: int, client_timeout: float | None = None) -> None:
        self.workers = workers
        self.client_timeout = client_timeout

    @classmethod
    def create(cls, workers: int, execution: Execution) -> Self:
        return cls(workers, execution.client_timeout)

    def open(self, job: Job, federation: Federation, states: States) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fedrecall-engine-"))
        self._door = Door()
        self._greeting = (
            self._folder,
            [self._folder, *federation.temporary_folders()],
            sys.path,
            cloudpickle.dumps((job, federation.handle(), states)),
        )
        self._threads, self._threads_before = job.local.threads, torch.get_num_threads()
        # As `serial` has them, and no more: the threads of sums here would take the workers' cores from them.
        torch.set_num_threads(job.local.threads)
        self._published: tuple[Header, Header] | None = None
        self._server_box, self._buffer_box = Box(self._folder, "server"), Box(self._folder, "buffers")
        self._boxes = Boxes(self._folder)
        self._deaths: dict[Task, Counter[str]] = {}
        self._members: list[Member] = []
        try:
            self._fill()
        except BaseException:
            self.close()
            raise

    def _fill(self) -> None:
        """Start as many workers as are missing; those that end before they come in are started again."""
        started: list[subprocess.Popen[bytes]] = []
        for _ in range(MOST_DEATHS):
            started = self._start(self.workers - len(self._members))
            if len(self._members) == self.workers:
                return
        codes = {process.returncode for process in started if process.returncode is not None}
        raise ClientError(f"worker processes ended before they began, with exit code {sorted(codes)}")

    def _start(self, count: int) -> list[subprocess.Popen[bytes]]:
        environment = {**os.environ, **self._door.key(), "OMP_NUM_THREADS": str(self._threads)}
        command = [sys.executable, "-m", "fedrecall.engines.processes.worker_main", str(self._door.port)]
        # All are started before the first is waited for: they import torch at the same time.
        started = [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) for _ in range(count)]
        try:
            for process, connection in self._door.admit(started):
                self._members.append(Member(process, connection))
                with contextlib.suppress(ConnectionError):  # a dead worker is noticed when its answer is awaited
                    connection.send(self._greeting)
                    if self._published:
                        connection.send(("publish", *self._published))
        except BaseException:
            for process in started:
                process.kill()
            raise
        return started

    def publish(self, round: int, server: Tensors, buffers: Tensors) -> None:
        self._published = self._server_box.put(server), self._buffer_box.put(buffers)
        self._vector_bytes = sum(tensor.nbytes for tensor in server.values())
        for member in self._members:
            with contextlib.suppress(ConnectionError):
                member.connection.send(("publish", *self._published))

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        run = InOrder(list(tasks), self._parcel_size, 2 * self.workers)
        while not run.over():
            self._hand_out(run)
            for member in self._answered():
                self._receive(member, run)
            for result in run.ready():
                self._hand_out(run)  # before the caller works on the result
                yield result

    def _parcel_size(self, tasks: int) -> int:
        """Small tasks travel together, because a message costs as much as some steps; large vectors go alone."""
        return max(1, min(tasks // (PARCELS * self.workers), PARCEL_BYTES // max(self._vector_bytes, 1)))

    def _hand_out(self, run: InOrder) -> None:
        for member in self._members:
            if member.parcel is None:
                member.parcel = run.next()
                if member.parcel is None:
                    return
                self._set_deadline(member)
                with contextlib.suppress(ConnectionError):
                    member.connection.send(("tasks", member.parcel.tasks, member.parcel.slot))

    def _set_deadline(self, member: Member) -> None:
        """From now on, if the worker has begun: imports take as long as they take."""
        if self.client_timeout is not None and member.parcel is not None and member.ready:
            member.deadline = time.monotonic() + self.client_timeout * len(member.parcel.tasks)

    def _answered(self) -> list[Member]:
        """The busy workers that have sent something, or have ended. Those whose time is up are killed."""
        busy = {member.connection: member for member in self._members if member.parcel is not None}
        soonest = min(member.deadline for member in busy.values())
        left = None if soonest == math.inf else max(0.0, soonest - time.monotonic())
        answered = [busy[connection] for connection in wait(list(busy), left)]  # type: ignore[index]
        for member in busy.values():
            if member not in answered and member.deadline <= time.monotonic():
                member.process.kill()  # its connection ends by that
                member.deadline, member.hung = math.inf, True
        return answered

    def _receive(self, member: Member, run: InOrder) -> None:
        """Take what a worker has sent. If it is dead, its tasks are the next to be run, by others."""
        parcel = member.parcel
        assert parcel is not None
        try:
            kind, what, extra = receive(member.connection)
        except EOFError:
            self._replace(member, parcel)
            run.lost(parcel)
            return
        if kind == "ready":
            member.ready = True
            self._set_deadline(member)
            return
        member.parcel, member.deadline = None, math.inf
        if kind == "unwritten":
            raise WriteError(extra)
        if kind == "refused":
            raise InputError(extra)
        if kind == "failed":
            self.failed = what
            where = f"{what} failed in a worker process" if what else "a worker process could not begin"
            raise ClientError(f"{where}:\n\n{extra.rstrip()}")
        run.done(parcel, unpack(parcel.tasks, extra, self._boxes))

    def _replace(self, member: Member, parcel: Parcel) -> None:
        member.process.kill()  # it may have closed its connection and live on
        code = member.process.wait()
        member.connection.close()
        self._members.remove(member)
        if len(parcel.tasks) == 1:  # else they are run one by one now, and the one that kills is found
            died = f"ended its worker process {{}} (exit code {code})"
            hung = f"did not answer for {self.client_timeout} s {{}} (execution.client_timeout)"
            self._count(parcel.tasks[0], hung if member.hung else died)
        self._fill()

    def _count(self, task: Task, death: str) -> None:
        deaths = self._deaths.setdefault(task, Counter())
        deaths[death] += 1
        if deaths.total() == MOST_DEATHS:
            self.failed = task
            how = [death.format("once" if count == 1 else f"{count} times") for death, count in deaths.items()]
            raise ClientError(f"{task} {' and '.join(how)}")

    def close(self) -> None:
        """End the workers: at once, unless they have nothing to do."""
        for member in self._members:
            if member.parcel is None and member.ready:
                with contextlib.suppress(OSError):
                    member.connection.send(("stop",))
            else:
                member.process.kill()
        for member in self._members:
            end(member.process)
            # Not before: a worker whose engine is gone deletes what the engine has left.
            member.connection.close()
        torch.set_num_threads(self._threads_before)
        self._door.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def end(process: subprocess.Popen[bytes]) -> None:
    """Wait for it, but not for ever: code of the user's may keep it."""
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
