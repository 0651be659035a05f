"""Worker processes on this machine, one client each at a time: the same bits as `serial`, sooner.

Workers are plain subprocesses, so that a script without a main guard, standard input and a notebook all work.
Results lie in boxes of the worker that made them: a few mapped files for each worker, however many there are.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Self

import cloudpickle
import torch

from fedrecall.client.job import Job
from fedrecall.data.federation import Federation
from fedrecall.device import CPU, Device
from fedrecall.engines.answering import Message
from fedrecall.engines.parcels import BOXES, Answer, Parcel, unstacked
from fedrecall.engines.pool import MOST_DEATHS, START, GoneError, Member, WorkerPool
from fedrecall.engines.processes import connection as link
from fedrecall.engines.processes import serving, worker_main
from fedrecall.engines.processes.search_path import libraries_first
from fedrecall.engines.processes.shared_tensors import Box, Boxes, Header
from fedrecall.errors import ClientError
from fedrecall.recipe.settings import Execution
from fedrecall.runs.client_states import States
from fedrecall.scratch import ScratchFolder
from fedrecall.vector import Tensors

GRACE = 10.0  # seconds for an idle worker to end by itself


@dataclass(eq=False, kw_only=True)
class WorkerProcess(Member):
    """A member that is a process of this machine."""

    process: subprocess.Popen[bytes]
    connection: Connection
    published: tuple[Header, Header] | None = None  # what it was last told to start from

    @property
    def results(self) -> str:
        """What its boxes' names begin with."""
        return f"result-{self.number}"


class Processes(WorkerPool[WorkerProcess]):
    """A pool of workers, started once."""

    name = "processes"

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
        self._begin()
        self._numbers, self._stillborn = itertools.count(), 0
        try:
            self._fill()
        except BaseException:
            self.close()
            raise

    def _fill(self) -> None:
        while len(self._members) < self.workers:
            self._start(self.workers - len(self._members))

    def _start(self, count: int) -> None:
        """Start and greet so many; those that end before they can be greeted are missing again."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(self._threads)}
        deadline = time.monotonic() + max(START, self.client_timeout or 0)
        started = []
        for _ in range(count):  # all, before the first is waited for
            process, connection = link.start(worker_main.__file__, self._leftovers, environment)
            place = next(self._numbers), deadline, self._next_device()
            started.append(WorkerProcess(*place, process=process, connection=connection))
            self._members.append(started[-1])
        for member in started:
            if not member.connection.poll(max(0.0, deadline - time.monotonic())):
                self._silent(member)
            try:
                link.receive(member.connection)  # it is there, and reads: what is sent now does not wait for ever
                member.connection.send((*self._greeting, member.results, vars(member.device)))
            except (EOFError, ConnectionError):
                self._bury(member)

    def _next_device(self) -> Device:
        """The one that the fewest workers are on."""
        return min(self.devices, key=lambda device: sum(member.device == device for member in self._members))

    def publish(self, round: int, server: Tensors, buffers: Tensors) -> None:
        """Workers are told when they are next given tasks."""
        super().publish(round, server, buffers)
        self._published = self._server_box.put(server), self._buffer_box.put(buffers)

    def _send(self, member: WorkerProcess, parcel: Parcel) -> None:
        with contextlib.suppress(ConnectionError):  # noticed when its answer is awaited
            if member.published is not self._published:
                assert self._published is not None
                member.connection.send(("publish", *self._published))
                member.published = self._published
            member.connection.send(("tasks", parcel.tasks, parcel.box))

    def _wait(self, members: Sequence[WorkerProcess], seconds: float | None) -> list[WorkerProcess]:
        by_connection = {member.connection: member for member in members}
        return [by_connection[connection] for connection in wait(list(by_connection), seconds)]  # type: ignore[index]

    def _message(self, member: WorkerProcess) -> Message:
        try:
            kind, what, extra = link.receive(member.connection)
        except EOFError:
            raise GoneError(f"exit code {self._exit_code(member)}") from None
        if kind == "ready":
            self._stillborn = 0
        return kind, what, extra

    def _unpack(self, parcel: Parcel, extra: Any) -> list[Answer]:
        rest, header = extra
        return unstacked(parcel.tasks, rest, self._boxes.take(header))

    def _kill(self, member: WorkerProcess) -> None:
        member.process.kill()  # its connection ends by that

    def _exit_code(self, member: WorkerProcess) -> int:
        """Of a worker whose connection has ended."""
        member.process.kill()  # it may have closed its connection and live on
        return member.process.wait()

    def _bury(self, member: WorkerProcess) -> None:
        code = self._exit_code(member)
        member.connection.close()
        self._members.remove(member)
        for box in range(BOXES):
            self._boxes.drop(f"{member.results}-{box}")
        self._stillborn += not member.ready
        if self._stillborn == MOST_DEATHS * self.workers:
            raise ClientError(f"worker processes ended before they began, with exit code {code}")

    def _silent(self, member: WorkerProcess) -> None:
        had = f"{START:.0f} s, or execution.client_timeout if that is longer,"
        raise ClientError(
            f"worker process {member.process.pid} did not begin: it had {had} to import torch and your code"
        )

    def close(self) -> None:
        """End the workers: at once, unless they have nothing to do."""
        for member in self._members:
            if not member.parcels and member.ready:
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


def end(process: subprocess.Popen[bytes]) -> None:
    """Wait for it, but not for ever: code of the user's may keep it."""
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
