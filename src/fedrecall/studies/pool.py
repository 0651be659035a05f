"""Several runs at once: members of a pool, wherever they are, carry out the runs of a study one after the other.

To start a member takes as long as many a small run, so that one carries out several. A run of code of the user's,
or one that failed, is the last of its member: what it has set up there is not the next run's to find.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fedrecall.studies.cells import PlannedRun, Slot
from fedrecall.studies.folder import StudyFolder

GRACE = 60.0  # seconds for the checkpoints of runs that are told to stop
PAUSE = 0.5  # seconds between two looks at the clock while nothing happens

Seen = Callable[[Slot, str, object], None]  # what happened to a run: "began", "round", or how it ended


@dataclass(eq=False, kw_only=True)
class Member:
    """Who carries out runs, and the run it is at."""

    run: PlannedRun | None = None
    ready: bool = True  # to be given a run


M = TypeVar("M", bound=Member)


class RunPool(ABC, Generic[M]):
    """At most so many members, each started when there is a run for it."""

    def __init__(self, folder: StudyFolder, jobs: int, seen: Seen) -> None:
        self.folder, self.jobs, self.seen = folder, jobs, seen
        self.members: list[M] = []
        self.waiting: list[PlannedRun] = []  # the next one last

    def carry_out(self, runs: Sequence[PlannedRun], tick: Callable[[], None]) -> None:
        """All runs, in their order as far as several at once have one; `tick` is called now and then."""
        self.waiting = list(reversed(runs))
        try:
            while self.waiting or any(member.run for member in self.members):
                self._hand_out()
                for member in self._wait():
                    self._hear(member)
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

    def _over(self, run: PlannedRun, kind: str, words: str) -> None:
        """A run has ended."""
        if kind == "failed":
            self.folder.note_failure(run.slot, words)
        self.seen(run.slot, kind, words)

    def _answered(self, member: M, kind: str, words: str) -> None:
        """A member has told how its run ended."""
        run, member.run = member.run, None
        assert run is not None
        if run.has_own_code or kind != "finished":
            self._end([member])
        self._over(run, kind, words)

    @abstractmethod
    def _start(self) -> M:
        """A new member."""

    @abstractmethod
    def _send(self, member: M, run: PlannedRun) -> None:
        """Have a member carry out a run. That it is gone is noticed when its answer is awaited."""

    @abstractmethod
    def _wait(self) -> Iterable[M]:
        """For a while, for any that has something to tell; those that have."""

    @abstractmethod
    def _hear(self, member: M) -> None:
        """Take what a member has told, or its end."""

    @abstractmethod
    def _end(self, members: Sequence[M]) -> None:
        """Of idle ones."""

    @abstractmethod
    def _stop(self) -> None:
        """Have every run write a checkpoint; who does not in time is killed."""

    @abstractmethod
    def _close(self) -> None:
        """Leave nobody behind."""
