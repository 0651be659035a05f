"""Worker processes on this machine, one client each at a time: the same bits as `serial`, sooner.

Workers are plain subprocesses, so that a script without a main guard, standard input and a notebook all work.
Tasks are handed out in their order; results are given back in their order. A worker that dies, or does not answer
in time, is replaced, and what it was doing is done again. Results lie in boxes of the worker that made them: a few
mapped files for each worker, however many there are.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Self

import cloudpickle
import torch

from fedrecall.client.work import Job, Result, Task
from fedrecall.data.federation import Federation
from fedrecall.device import CPU, Device
from fedrecall.engines.engine import Engine
from fedrecall.engines.processes import connection as link
from fedrecall.engines.processes import serving, worker_main
from fedrecall.engines.processes.batching import BOXES, InOrder, Parcel, unpack
from fedrecall.engines.processes.search_path import libraries_first
from fedrecall.engines.processes.shared_tensors import Box, Boxes, Header
from fedrecall.errors import ClientError, InputError, WriteError
from fedrecall.recipe.settings import Execution
from fedrecall.runs.client_states import States
from fedrecall.scratch import ScratchFolder
from fedrecall.vector import Tensors

MOST_DEATHS = 3  # of workers on one task, before the run is stopped
START = 300.0  # seconds for a worker to begin: it imports torch and the user's code, perhaps on a busy machine
GRACE = 10.0  # seconds for an idle worker to end by itself
PARCELS = 4  # for each worker in a round at least, so that none idles at its end
PARCEL_BYTES = 8 * 2**20


@dataclass(eq=False)
class Member:
    """A worker process and what it is doing."""

    number: int  # among all that were ever started
    process: subprocess.Popen[bytes]
    connection: Connection
    deadline: float  # when it should have begun, or its parcel should be done
    device: Device = CPU
    published: tuple[Header, Header] | None = None  # what it was last told to start from
    parcel: Parcel | None = None
    ready: bool = False  # it has said that it has begun
    hung: bool = False  # its parcel was not done in time, and it was killed

    @property
    def results(self) -> str:
        """What its boxes' names begin with."""
        return f"result-{self.number}"


class Processes(Engine):
    """A pool of workers, started once."""

    name = "processes"
    replaces_workers = True
    in_this_process = False

    def __init__(
        self, workers: int, client_timeout: float | None = None, devices: Sequence[Device] = (CPU,)
    ) -> None:
        self.workers, self.devices = workers, devices
        self.client_timeout = client_timeout

    @classmethod
    def create(cls, workers: int, execution: Execution, devices: Sequence[Device] = (CPU,)) -> Self:
        return cls(workers, execution.client_timeout, devices[:workers])

    def open(self, job: Job, federation: Federation, states: States) -> None:
        self._scratch = ScratchFolder("engine")
        self._folder = self._scratch.path
        self._leftovers = [str(folder) for folder in (self._folder, *federation.temporary_folders())]
        setup = cloudpickle.dumps((job, federation.handle(), states))
        self._greeting = libraries_first(), sys.path, serving.__name__, setup, str(self._folder)
        self._threads, self._threads_before = job.local.threads, torch.get_num_threads()
        # As `serial` has them, and no more: the threads of sums here would take the workers' cores from them.
        torch.set_num_threads(job.local.threads)
        self._published: tuple[Header, Header] | None = None
        self._server_box, self._buffer_box = Box(self._folder, "server"), Box(self._folder, "buffers")
        self._boxes = Boxes(self._folder)
        self._deaths: dict[Task, Counter[str]] = {}
        self._members: list[Member] = []
        self._numbers, self._stillborn = itertools.count(), 0
        try:
            self._fill()
        except BaseException:
            self.close()
            raise

    def _fill(self) -> None:
        """Start as many workers as are missing."""
        while len(self._members) < self.workers:
            self._start(self.workers - len(self._members))

    def _start(self, count: int) -> None:
        """Start and greet so many; those that end before they can be greeted are missing again."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(self._threads)}
        deadline = time.monotonic() + max(START, self.client_timeout or 0)
        started = []
        for _ in range(count):  # all, before the first is waited for
            process, connection = link.start(worker_main.__file__, self._leftovers, environment)
            started.append(Member(next(self._numbers), process, connection, deadline, self._next_device()))
            self._members.append(started[-1])
        for member in started:
            if not member.connection.poll(max(0.0, deadline - time.monotonic())):
                raise silent(member)
            try:
                link.receive(member.connection)  # it is there, and reads: what is sent now does not wait for ever
                member.connection.send((*self._greeting, member.results, member.device.fields()))
            except (EOFError, ConnectionError):
                self._bury(member)

    def _next_device(self) -> Device:
        """The one that the fewest workers are on."""
        return min(self.devices, key=lambda device: sum(member.device == device for member in self._members))

    def publish(self, round: int, server: Tensors, buffers: Tensors) -> None:
        """Workers are told when they are next given tasks."""
        self._published = self._server_box.put(server), self._buffer_box.put(buffers)
        self._vector_bytes = sum(tensor.nbytes for tensor in server.values())

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        run = InOrder(list(tasks), self._parcel_size)
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
                member.parcel = run.next(member.number)
                if member.parcel is not None:
                    self._set_deadline(member)
                    with contextlib.suppress(ConnectionError):  # noticed when its answer is awaited
                        self._send(member, member.parcel)

    def _send(self, member: Member, parcel: Parcel) -> None:
        if member.published is not self._published:
            assert self._published is not None
            member.connection.send(("publish", *self._published))
            member.published = self._published
        member.connection.send(("tasks", parcel.tasks, parcel.box))

    def _set_deadline(self, member: Member) -> None:
        """From now on, if the worker has begun; until then it has the time of its start."""
        if member.ready:
            seconds = math.inf if self.client_timeout is None else self.client_timeout
            member.deadline = time.monotonic() + seconds * len(member.parcel.tasks) if member.parcel else math.inf

    def _answered(self) -> list[Member]:
        """The busy workers that have sent something, or have ended. Those whose time is up are killed."""
        busy = {member.connection: member for member in self._members if member.parcel is not None}
        soonest = min(member.deadline for member in busy.values())
        left = None if soonest == math.inf else max(0.0, soonest - time.monotonic())
        answered = [busy[connection] for connection in wait(list(busy), left)]  # type: ignore[index]
        for member in busy.values():
            if member not in answered and member.deadline <= time.monotonic():
                if not member.ready:
                    raise silent(member)
                member.process.kill()  # its connection ends by that
                member.deadline, member.hung = math.inf, True
        return answered

    def _receive(self, member: Member, run: InOrder) -> None:
        """Take what a worker has sent. If it is dead, its tasks are the next to be run, by others."""
        parcel = member.parcel
        assert parcel is not None
        try:
            kind, what, extra = link.receive(member.connection)
        except EOFError:
            self._replace(member, parcel)
            run.lost(parcel)
            return
        if kind == "ready":
            member.ready, self._stillborn = True, 0
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
        code = self._bury(member)
        if (
            member.ready and len(parcel.tasks) == 1
        ):  # else they are run one by one now, and the one that kills is found
            died = f"ended its worker process {{}} (exit code {code})"
            hung = f"did not answer for {self.client_timeout} s {{}} (execution.client_timeout)"
            self._count(parcel.tasks[0], hung if member.hung else died)
        self._fill()

    def _bury(self, member: Member) -> int:
        """The exit code of a worker whose connection has ended; nothing of it is left."""
        member.process.kill()  # it may have closed its connection and live on
        code = member.process.wait()
        member.connection.close()
        self._members.remove(member)
        for box in range(BOXES):
            self._boxes.drop(f"{member.results}-{box}")
        self._stillborn += not member.ready
        if self._stillborn == MOST_DEATHS * self.workers:
            raise ClientError(f"worker processes ended before they began, with exit code {code}")
        return code

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
        self._scratch.remove()


def silent(member: Member) -> ClientError:
    return ClientError(
        f"worker process {member.process.pid} did not begin: it had {START:.0f} s, or execution.client_timeout if "
        "that is longer, to import torch and your code"
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Wait for it, but not for ever: code of the user's may keep it."""
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
