"""Several runs at once: worker processes that carry out the runs of a study one after the other.

To start a process takes as long as many a small run, so that one carries out several. A run of code of the user's,
or one that failed, is the last of its process: what it has set up there is not the next run's to find.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from fedrecall.engines.processes import connection as link
from fedrecall.engines.processes import worker_main
from fedrecall.engines.processes.search_path import libraries_first
from fedrecall.errors import ClientError
from fedrecall.studies import serving
from fedrecall.studies.cells import PlannedRun, Slot
from fedrecall.studies.folder import StudyFolder

GRACE = 60.0  # seconds for the checkpoints of runs that are told to stop
PAUSE = 0.5  # seconds between two looks at the clock while nothing happens

Seen = Callable[[Slot, str, object], None]  # what happened to a run: "began", "round", or how it ended


@dataclass(eq=False)
class Member:
    """A worker process, and the run it is at."""

    process: subprocess.Popen[bytes]
    connection: Connection
    run: PlannedRun | None = None


class Pool:
    """At most so many processes, each started when there is a run for it."""

    def __init__(self, folder: StudyFolder, jobs: int, seen: Seen) -> None:
        self.folder, self.jobs, self.seen = folder, jobs, seen
        self.members: list[Member] = []

    def carry_out(self, runs: Sequence[PlannedRun], tick: Callable[[], None]) -> None:
        """All runs, in their order as far as several at once have one; `tick` is called now and then."""
        waiting = list(reversed(runs))
        try:
            while waiting or any(member.run for member in self.members):
                self._hand_out(waiting)
                busy = {member.connection: member for member in self.members if member.run}
                for connection in wait(list(busy), PAUSE):
                    self._hear(busy[connection])  # type: ignore[index]
                tick()
            self._end(self.members)
        except KeyboardInterrupt:
            self._stop()
            raise
        finally:
            for member in self.members:
                member.process.kill()
                member.process.wait()
                member.connection.close()

    def _hand_out(self, waiting: list[PlannedRun]) -> None:
        idle = [member for member in self.members if member.run is None]
        while waiting and (idle or len(self.members) < self.jobs):
            member = idle.pop() if idle else self._start()
            member.run = run = waiting.pop()
            self.folder.forget_failure(run.slot)
            paths = self.folder.run(run.slot), self.folder.log(run.slot)
            order = serving.Order(run.recipe.tree(), *paths)
            self.seen(run.slot, "began", None)
            with contextlib.suppress(ConnectionError):  # noticed when its answer is awaited
                member.connection.send(order)

    def _start(self) -> Member:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        member = Member(*link.start(worker_main.__file__, [], environment))
        self.members.append(member)
        with contextlib.suppress(ConnectionError):
            member.connection.send((libraries_first(), sys.path, serving.__name__))
        return member

    def _hear(self, member: Member) -> None:
        """Take what a process has sent, or its end."""
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
        member.run = None
        if run.has_own_code or kind != "finished":
            self._end([member])
        self._over(run, kind, words)

    def _over(self, run: PlannedRun, kind: str, words: str) -> None:
        if kind == "failed":
            self.folder.note_failure(run.slot, words)
        self.seen(run.slot, kind, words)

    def _bury(self, member: Member) -> int:
        member.process.kill()  # it may have closed its connection and live on
        code = member.process.wait()
        member.connection.close()
        self.members.remove(member)
        return code

    def _end(self, members: list[Member]) -> None:
        """Idle ones, which end by themselves; all are told before the first is waited for."""
        members = list(members)
        for member in members:
            with contextlib.suppress(OSError):
                member.connection.send(None)
        for member in members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(GRACE)
            self._bury(member)

    def _stop(self) -> None:
        """Have every run write a checkpoint; who does not in time is killed."""
        for member in self.members:
            member.process.terminate()
        deadline = time.monotonic() + GRACE
        for member in self.members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(max(0.0, deadline - time.monotonic()))
