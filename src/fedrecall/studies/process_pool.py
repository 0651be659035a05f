"""Several runs at once in worker processes on this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from fedrecall.engines.processes import connection as link
from fedrecall.engines.processes import worker_main
from fedrecall.engines.processes.search_path import libraries_first
from fedrecall.errors import ClientError
from fedrecall.studies import serving
from fedrecall.studies.cells import PlannedRun
from fedrecall.studies.pool import GRACE, PAUSE, Member, RunPool


@dataclass(eq=False)
class Process(Member):
    """A member that is a process of this machine."""

    process: subprocess.Popen[bytes]
    connection: Connection


class ProcessPool(RunPool[Process]):
    """Processes, each with a connection of its own."""

    def _start(self) -> Process:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        member = Process(*link.start(worker_main.__file__, [], environment))
        with contextlib.suppress(ConnectionError):
            member.connection.send((libraries_first(), sys.path, serving.__name__))
        return member

    def _send(self, member: Process, run: PlannedRun) -> None:
        order = serving.Order(run.recipe.tree(), self.folder.run(run.slot), self.folder.log(run.slot))
        with contextlib.suppress(ConnectionError):
            member.connection.send(order)

    def _wait(self) -> list[Process]:
        busy = {member.connection: member for member in self.members if member.run}
        return [busy[connection] for connection in wait(list(busy), PAUSE)]  # type: ignore[index]

    def _hear(self, member: Process) -> None:
        run = member.run
        assert run is not None
        try:
            message = link.receive(member.connection)
        except EOFError:
            code = self._bury(member)
            self._over(
                run, "failed", f"its process ended with exit code {code}; see {self.folder.log(run.slot).name}"
            )
            return
        if message == "here":
            return
        kind, words, *trace = message
        if kind == "round":
            self.seen(run.slot, kind, words)
            return
        if trace:  # it could not import what is ours: no other process could
            raise ClientError(f"a worker process could not begin:\n\n{trace[0].rstrip()}")
        self._answered(member, kind, words)

    def _bury(self, member: Process) -> int:
        member.process.kill()  # it may have closed its connection and live on
        code = member.process.wait()
        member.connection.close()
        self.members.remove(member)
        return code

    def _end(self, members: Sequence[Process]) -> None:
        """They end by themselves; all are told before the first is waited for."""
        for member in members:
            with contextlib.suppress(OSError):
                member.connection.send(None)
        for member in members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(GRACE)
            self._bury(member)

    def _stop(self) -> None:
        for member in self.members:
            member.process.terminate()
        deadline = time.monotonic() + GRACE
        for member in self.members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(max(0.0, deadline - time.monotonic()))

    def _close(self) -> None:
        for member in self.members:
            member.process.kill()
            member.process.wait()
            member.connection.close()
