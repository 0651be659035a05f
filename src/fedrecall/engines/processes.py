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
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import cloudpickle

from fedrecall.data.federation import Federation
from fedrecall.engines.base import Job, Result, Task
from fedrecall.engines.box import Box, Boxes, Header
from fedrecall.engines.link import Door
from fedrecall.errors import ClientError, InputError
from fedrecall.store import ClientStore
from fedrecall.vector import Tensors

MOST_DEATHS = 3  # of workers on one task, before the run is stopped


@dataclass
class Member:
    """A worker process and what it is doing."""

    process: subprocess.Popen[bytes]
    connection: Connection
    task: Task | None = None
    slot: int = -1


class Processes:
    """A pool of workers, started once."""

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
        for member in self._members:
            member.connection.send(("publish", *self._published))

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        waiting, expected = deque(tasks), 0
        finished: dict[int, tuple[Result, int]] = {}  # by place, with the slot that holds its vectors
        places = {id(task): place for place, task in enumerate(waiting)}
        total, free = len(waiting), list(range(2 * self.workers))
        while expected < total:
            self._hand_out(waiting, free)
            for member in self._answered():
                task, slot = member.task, member.slot
                result = self._receive(member)
                assert task is not None
                if result is None:  # the worker died: its task is the next to be run, by another
                    waiting.appendleft(task)
                    free.append(slot)
                else:
                    finished[places[id(task)]] = result, slot
            while expected in finished:
                result, slot = finished.pop(expected)
                self._hand_out(waiting, free)  # before the caller works on the result
                yield result
                free.append(slot)
                expected += 1

    def _hand_out(self, waiting: deque[Task], free: list[int]) -> None:
        for member in self._members:
            if waiting and free and member.task is None:
                member.task, member.slot = waiting.popleft(), free.pop()
                with contextlib.suppress(ConnectionError):  # a dead worker is noticed when its answer is awaited
                    member.connection.send(("task", member.task, member.slot))

    def _answered(self) -> list[Member]:
        busy = {member.connection: member for member in self._members if member.task is not None}
        return [busy[connection] for connection in wait(list(busy))]  # type: ignore[index]

    def _receive(self, member: Member) -> Result | None:
        """A worker's answer; None if it died."""
        task = member.task
        assert task is not None
        try:
            kind, what, extra = member.connection.recv()
        except (EOFError, ConnectionError):
            self._replace(member, task)
            return None
        member.task = None
        if kind == "refused":
            raise InputError(extra)
        if kind == "failed":
            raise ClientError(f"{place(task)} failed in a worker:\n\n{extra}")
        return self._unpacked(what, extra)

    def _unpacked(self, result: Result, header: Header) -> Result:
        for name, tensor in self._boxes.take(header).items():
            group, _, key = name.partition(".")
            (result.sent if group == "sent" else result.buffers)[key] = tensor
        return result

    def _replace(self, member: Member, task: Task) -> None:
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
            if member.task is not None:
                member.process.kill()
        for member in self._members:
            member.process.wait()
        self._door.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def place(task: Task) -> str:
    if task.kind == "train":
        return f"client {task.client} in round {task.round}"
    return f"evaluation on {task.split} data in round {task.round}"
