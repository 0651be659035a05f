"""Base of the pools that execute the runs of a study in parallel.

Starting a member takes as long as a small run, so each executes several runs, one after the other. A member ends
after a run with the user's own code and after a run that failed, so that the next run finds no trace of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fedrecall.studies.cells import PlannedRun, RunSlot
from fedrecall.studies.folder import StudyFolder

GRACE = 60.0  # seconds for stopping runs to write a checkpoint
PAUSE = 0.5  # seconds at most between two calls of `tick`

Seen = Callable[[RunSlot, str, object], None]  # reports an event of a run: "began", "round", or how it ended


@dataclass(eq=False, kw_only=True)
class RunWorker:
    """A process or an actor that executes runs, and its current run."""

    run: PlannedRun | None = None
    ready: bool = True  # it can be given a run


M = TypeVar("M", bound=RunWorker)


class RunPool(ABC, Generic[M]):
    """Executes runs in at most `jobs` members, each started when there is a run for it."""

    def __init__(self, folder: StudyFolder, jobs: int, seen: Seen) -> None:
        self.folder, self.jobs, self.seen = folder, jobs, seen
        self.members: list[M] = []
        self.waiting: list[PlannedRun] = []  # the next one last

    def execute(self, runs: Sequence[PlannedRun], tick: Callable[[], None]) -> None:
        """Start the runs in their order and wait until all have ended; call `tick` from time to time."""
        self.waiting = list(reversed(runs))
        try:
            while self.waiting or any(member.run for member in self.members):
                self._hand_out()
                for member in self._wait():
                    self._receive(member)
                tick()
            self._end(list(self.members))
        except KeyboardInterrupt:
            self._stop()
            raise
        finally:
            self._close()

    def _hand_out(self) -> None:
        busy = sum(member.run is not None for member in self.members)
        while len(self.members) < min(self.jobs, busy + len(self.waiting)):
            self.members.append(self._start())
        for member in self.members:
            if self.waiting and member.ready and member.run is None:
                member.run = run = self.waiting.pop()
                self.folder.forget_failure(run.slot)
                self.seen(run.slot, "began", None)
                self._send(member, run)

    def _record_end(self, run: PlannedRun, kind: str, words: str) -> None:
        """Record and report how a run ended."""
        if kind == "failed":
            self.folder.note_failure(run.slot, words)
        self.seen(run.slot, kind, words)

    def _run_ended(self, member: M, kind: str, words: str) -> None:
        """Handle the end of a member's run, as the member reports it."""
        run, member.run = member.run, None
        assert run is not None
        if run.has_own_code or kind != "finished":
            self._end([member])
        self._record_end(run, kind, words)

    @abstractmethod
    def _start(self) -> M:
        """Start a new member."""

    @abstractmethod
    def _send(self, member: M, run: PlannedRun) -> None:
        """Send a run to a member. A dead member is noticed when its answer is awaited."""

    @abstractmethod
    def _wait(self) -> Iterable[M]:
        """Wait a limited time for messages; return the members that have sent one or have ended."""

    @abstractmethod
    def _receive(self, member: M) -> None:
        """Handle the next message of a member, or its end."""

    @abstractmethod
    def _end(self, members: Sequence[M]) -> None:
        """End idle members."""

    @abstractmethod
    def _stop(self) -> None:
        """Stop the runs, giving them up to `GRACE` seconds to write checkpoints."""

    @abstractmethod
    def _close(self) -> None:
        """Kill all remaining members."""
