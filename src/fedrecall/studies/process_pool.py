"""Runs of a study in parallel, in worker processes on this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from fedrecall.engines.messages import Shutdown
from fedrecall.engines.processes import connection as link
from fedrecall.engines.processes import worker_main
from fedrecall.engines.processes.search_path import libraries_first
from fedrecall.errors import ClientError
from fedrecall.studies import serving
from fedrecall.studies.cells import PlannedRun
from fedrecall.studies.pool import GRACE, PAUSE, RunPool, RunWorker


@dataclass(eq=False)
class Process(RunWorker):
    """A member that is a process on this machine."""

    process: subprocess.Popen[bytes]
    connection: Connection


class ProcessPool(RunPool[Process]):
    """Executes runs in processes, each with a connection of its own."""

    def _start(self) -> Process:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        member = Process(*link.start(worker_main.__file__, [], environment))
        with contextlib.suppress(ConnectionError):
            member.connection.send((libraries_first(), sys.path, serving.__name__))
        return member

    def _send(self, member: Process, run: PlannedRun) -> None:
        order = serving.RunOrder(run.recipe.tree(), self.folder.run(run.slot), self.folder.log(run.slot))
        with contextlib.suppress(ConnectionError):
            member.connection.send(order)

    def _wait(self) -> list[Process]:
        busy = {member.connection: member for member in self.members if member.run}
        return [busy[connection] for connection in wait(list(busy), PAUSE)]  # type: ignore[index]

    def _receive(self, member: Process) -> None:
        run = member.run
        assert run is not None
        try:
            message: str | serving.RoundDone | serving.Ended = link.receive(member.connection)
        except EOFError:
            code = self._release(member)
            log = self.folder.log(run.slot).name
            self._record_end(run, "failed", f"its process ended with exit code {code}; see {log}")
            return
        match message:
            case "here":
                return
            case serving.RoundDone(number):
                self.seen(run.slot, "round", number)
            case serving.Ended(kind, words):
                self._run_ended(member, kind, words)
            case str():  # the traceback of a failed import, which would fail in any other process too
                raise ClientError(f"a worker process could not begin:\n\n{message.rstrip()}")

    def _release(self, member: Process) -> int:
        """Release the resources of a process; return its exit code."""
        member.process.kill()  # it may have closed its connection without ending
        code = member.process.wait()
        member.connection.close()
        self.members.remove(member)
        return code

    def _end(self, members: Sequence[Process]) -> None:
        """End the processes, asking all of them before waiting for the first."""
        for member in members:
            with contextlib.suppress(OSError):
                member.connection.send(Shutdown())
        for member in members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(GRACE)
            self._release(member)

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
