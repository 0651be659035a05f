"""Worker processes on this machine, one client each at a time: the same bits as `serial`, sooner.

Workers are plain subprocesses, so that a script without a main guard, standard input and a notebook all work.
Tasks are handed out in their order; results are given back in their order.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import cloudpickle

from fedrecall.data.federation import Federation
from fedrecall.engines.base import Job, Result, Task
from fedrecall.engines.box import Box, Boxes, Header
from fedrecall.engines.link import Door
from fedrecall.engines.parcels import InOrder, Parcel
from fedrecall.errors import ClientError, InputError
from fedrecall.store import ClientStore
from fedrecall.vector import Tensors

MOST_DEATHS = 3  # of workers on one task, before the run is stopped
PARCELS = 4  # for each worker in a round at least, so that none idles at its end
PARCEL_BYTES = 8 * 2**20


@dataclass
class Member:
    """A worker process and what it is doing."""

    process: subprocess.Popen[bytes]
    connection: Connection
    parcel: Parcel | None = None


class Processes:
    """A pool of workers, started once."""

    name = "processes"

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def open(self, job: Job, federation: Federation, store: ClientStore) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fedrecall-engine-"))
        self._door = Door()
        self._greeting = (
            self._folder,
            [self._folder, *federation.temporary_folders()],
            sys.path,
            cloudpickle.dumps((job, federation, store)),
        )
        self._threads = job.local.threads
        self._published: tuple[Header, Header] | None = None
        self._server_box, self._buffer_box = Box(self._folder, "server"), Box(self._folder, "buffers")
        self._boxes = Boxes(self._folder)
        self._deaths: dict[tuple[int, int, int], int] = {}
        self._members = self._start(self.workers)

    def _start(self, count: int) -> list[Member]:
        environment = {**os.environ, **self._door.key(), "OMP_NUM_THREADS": str(self._threads)}
        command = [sys.executable, "-m", "fedrecall.engines.worker", str(self._door.port)]
        # All are started before the first is waited for: they import torch at the same time.
        started = [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) for _ in range(count)]
        members = [Member(process, connection) for process, connection in self._door.admit(started)]
        for member in members:
            member.connection.send(self._greeting)
            if self._published:
                member.connection.send(("publish", *self._published))
        return members

    def publish(self, round: int, server: Tensors, buffers: Tensors) -> None:
        self._published = self._server_box.put(server), self._buffer_box.put(buffers)
        self._vector_bytes = sum(tensor.nbytes for tensor in server.values())
        for member in self._members:
            member.connection.send(("publish", *self._published))

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        run = InOrder(list(tasks), self._parcel_size, 2 * self.workers)
        while not run.over():
            self._hand_out(run)
            for member in self._answered():
                parcel = member.parcel
                assert parcel is not None
                results = self._receive(member)
                if results is None:  # the worker died: its tasks are the next to be run, by others
                    run.lost(parcel)
                else:
                    run.done(parcel, results)
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
                with contextlib.suppress(ConnectionError):  # a dead worker is noticed when its answer is awaited
                    member.connection.send(("tasks", member.parcel.tasks, member.parcel.slot))

    def _answered(self) -> list[Member]:
        busy = {member.connection: member for member in self._members if member.parcel is not None}
        return [busy[connection] for connection in wait(list(busy))]  # type: ignore[index]

    def _receive(self, member: Member) -> list[Result] | None:
        """A worker's answers; None if it died."""
        parcel = member.parcel
        assert parcel is not None
        try:
            kind, what, extra = member.connection.recv()
        except (EOFError, ConnectionError):
            self._replace(member, parcel)
            return None
        member.parcel = None
        if kind == "refused":
            raise InputError(extra)
        if kind == "failed":
            raise ClientError(f"{place(what)} failed in a worker:\n\n{extra}")
        return self._unpacked(what, extra)

    def _unpacked(self, results: list[Result], header: Header) -> list[Result]:
        for name, tensor in self._boxes.take(header).items():
            at, group, key = name.split(".", 2)
            result = results[int(at)]
            (result.sent if group == "sent" else result.buffers)[key] = tensor
        return results

    def _replace(self, member: Member, parcel: Parcel) -> None:
        if len(parcel.tasks) == 1:  # else they are run one by one now, and the one that kills is found
            task = parcel.tasks[0]
            key = (task.round, task.client, task.order)
            self._deaths[key] = self._deaths.get(key, 0) + 1
            if self._deaths[key] == MOST_DEATHS:
                raise ClientError(f"{place(task)} ended its worker process {MOST_DEATHS} times")
        member.connection.close()
        member.process.wait()
        (self._members[self._members.index(member)],) = self._start(1)

    def close(self) -> None:
        """End the workers: at once if they are still at work."""
        for member in self._members:
            with contextlib.suppress(OSError):
                member.connection.send(("stop",))
                member.connection.close()
            if member.parcel is not None:
                member.process.kill()
        for member in self._members:
            member.process.wait()
        self._door.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def place(task: Task) -> str:
    if task.kind == "train":
        return f"client {task.client} in round {task.round}"
    return f"evaluation on {task.split} data in round {task.round}"
