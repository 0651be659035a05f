"""Worker processes on this machine, each training one client at a time, with the same bits as `serial`.

Workers are plain subprocesses, so that a script without a main guard, standard input and a notebook all work.
Results are written to a few memory-mapped files per worker, whatever the number of results.
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
from typing import Self

import cloudpickle
import torch

from fedrecall.backend.device import CPU, Device
from fedrecall.client.job import Job
from fedrecall.core.vector import Tensors
from fedrecall.data.federation import Federation
from fedrecall.engines.messages import Computed, Done, Failed, Message, Publish, Ready, RunTasks, Shutdown
from fedrecall.engines.pool import MOST_DEATHS, START, PoolCall, PoolWorker, WorkerGoneError, WorkerPool
from fedrecall.engines.processes import connection as link
from fedrecall.engines.processes import serving, worker_main
from fedrecall.engines.processes.search_path import libraries_first
from fedrecall.engines.processes.shared_tensors import SharedTensorReader, SharedTensorWriter
from fedrecall.engines.task_chunks import SLOTS, OrderedTasks, TaskChunk, unstack_results
from fedrecall.errors import ClientError
from fedrecall.recipe.settings import Execution
from fedrecall.runs.client_states import States
from fedrecall.storage.scratch import ScratchFolder

GRACE = 10.0  # seconds for an idle worker to exit by itself


@dataclass(eq=False, kw_only=True)
class WorkerProcess(PoolWorker):
    """A member that is a process on this machine."""

    process: subprocess.Popen[bytes]
    connection: Connection
    published: Publish | None = None  # the last state that it was sent

    @property
    def results(self) -> str:
        """Return the prefix of its result files' names."""
        return f"result-{self.number}"


class Processes(WorkerPool[WorkerProcess]):
    """A pool of worker processes that lasts for a run."""

    name = "processes"

    def __init__(self, workers: int, client_timeout: float | None = None, devices: Sequence[Device] = (CPU,)) -> None:
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
        # As on `serial`: with more threads, sums in this process would take cores from the workers.
        torch.set_num_threads(job.local.threads)
        self._published: Publish | None = None
        self._server = SharedTensorWriter(self._folder, "server")
        self._buffers = SharedTensorWriter(self._folder, "buffers")
        self._results = SharedTensorReader(self._folder)
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
        """Start `count` workers and send each its setup; release those that exit before that."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(self._threads)}
        deadline = time.monotonic() + max(START, self.client_timeout or 0)
        started = []
        for _ in range(count):  # start all before waiting for the first
            process, connection = link.start(worker_main.__file__, self._leftovers, environment)
            place = next(self._numbers), deadline, self._next_device()
            started.append(WorkerProcess(*place, process=process, connection=connection))
            self._members.append(started[-1])
        for member in started:
            if not member.connection.poll(max(0.0, deadline - time.monotonic())):
                self._start_timed_out(member)
            try:
                link.receive(member.connection)  # it reads now, so that sending does not block forever
                member.connection.send((*self._greeting, member.results, vars(member.device)))
            except (EOFError, ConnectionError):
                self._release(member)

    def _next_device(self) -> Device:
        """Return the device with the fewest workers."""
        return min(self.devices, key=lambda device: sum(member.device == device for member in self._members))

    def publish(self, round: int, server: Tensors, buffers: Tensors) -> None:
        """Share the state; each worker receives its location with the next tasks."""
        super().publish(round, server, buffers)
        self._published = Publish(self._server.write(server), self._buffers.write(buffers))

    def _send(self, member: WorkerProcess, chunk: TaskChunk) -> None:
        with contextlib.suppress(ConnectionError):  # a dead worker is noticed when its answer is awaited
            if member.published is not self._published:
                member.connection.send(self._published)
                member.published = self._published
            member.connection.send(RunTasks(chunk.tasks, chunk.slot))

    def _wait(self, members: Sequence[WorkerProcess], seconds: float | None) -> list[WorkerProcess]:
        by_connection = {member.connection: member for member in members}
        return [by_connection[connection] for connection in wait(list(by_connection), seconds)]  # type: ignore[index]

    def _message(self, member: WorkerProcess) -> Message:
        try:
            message: Message | str = link.receive(member.connection)
        except EOFError:
            raise WorkerGoneError(f"exit code {self._exit_code(member)}") from None
        if isinstance(message, str):  # a traceback: the worker could not import the classes of messages
            return Failed(None, message)
        if isinstance(message, Ready):
            self._stillborn = 0
        return message

    def _finish(self, work: PoolCall, member: WorkerProcess, chunk: TaskChunk, message: Computed) -> None:
        assert isinstance(work, OrderedTasks)
        assert isinstance(message, Done)
        work.done(chunk, unstack_results(chunk.tasks, message.scalars, self._results.read(message.vectors)))

    def _kill(self, member: WorkerProcess) -> None:
        member.process.kill()  # this also ends its connection

    def _exit_code(self, member: WorkerProcess) -> int:
        """Return the exit code of a worker whose connection has ended."""
        member.process.kill()  # it may have closed its connection without ending
        return member.process.wait()

    def _release(self, member: WorkerProcess) -> None:
        code = self._exit_code(member)
        member.connection.close()
        self._members.remove(member)
        for slot in range(SLOTS):
            self._results.drop(f"{member.results}-{slot}")
        self._stillborn += not member.ready
        if self._stillborn == MOST_DEATHS * self.workers:
            raise ClientError(f"worker processes ended before they began, with exit code {code}")

    def _start_timed_out(self, member: WorkerProcess) -> None:
        had = f"{START:.0f} s, or execution.client_timeout if that is longer,"
        raise ClientError(
            f"worker process {member.process.pid} did not begin: it had {had} to import torch and your code"
        )

    def close(self) -> None:
        """Stop the workers: idle ones by a message, others by a signal."""
        for member in self._members:
            if not member.chunks and member.ready:
                with contextlib.suppress(OSError):
                    member.connection.send(Shutdown())
            else:
                member.process.kill()
        for member in self._members:
            end(member.process)
            # Not earlier: a worker that loses its connection deletes the engine's folders.
            member.connection.close()
        torch.set_num_threads(self._threads_before)
        self._scratch.remove()


def end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process to exit; kill it if user code keeps it alive."""
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
