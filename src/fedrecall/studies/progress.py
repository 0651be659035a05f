"""Progress and remaining time of a study: a live table in a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedrecall.display import count_of, printable
from fedrecall.report.tables import duration
from fedrecall.studies.cells import PlannedRun, RunSlot
from fedrecall.studies.folder import State

MOST_ROWS = 20  # unfinished cells to show; a terminal has few more lines


@dataclass
class RunProgress:
    """The progress of a run in this call."""

    cell: str
    rounds: int  # the total
    done: int = 0
    first: int = 0  # rounds that were done before this call
    began: float | None = None  # monotonic time; None if not begun in this call
    ended: float | None = None
    kind: str = "waiting"
    words: str = ""


class Progress:
    """Tracks and shows the progress of a study's runs."""

    def __init__(
        self,
        runs: Sequence[PlannedRun],
        states: Mapping[RunSlot, State],
        jobs: int,
        *,
        quiet: bool = False,
        console: Console | None = None,
    ) -> None:
        self.jobs, self.console = jobs, console or Console(stderr=True)
        self.courses = {}
        for run in runs:
            state, rounds = states[run.slot], run.recipe.rounds
            done = rounds if state.kind == "finished" else state.rounds
            self.courses[run.slot] = RunProgress(run.slot.cell, rounds, done, done, kind=state.kind, words=state.words)
        self.lines = not quiet and not self.console.is_terminal
        drawn = not quiet and self.console.is_terminal
        self.live = (
            Live(console=self.console, get_renderable=self.table, auto_refresh=False, transient=True) if drawn else None
        )

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()

    def seen(self, slot: RunSlot, kind: str, what: object) -> None:
        """Record an event of a run: "began", "round", or how it ended."""
        course, now = self.courses[slot], time.monotonic()
        if kind == "began":
            course.kind, course.began, course.words = "running", now, ""
            return
        if kind == "round":
            course.done = int(str(what))
            return
        course.kind, course.ended = kind, now
        course.words = printable(str(what))
        if kind == "finished":
            course.done = course.rounds
        if self.lines:
            words = f"{kind}: {course.words}" if course.words else kind
            self.console.print(
                f"{slot.title}: {words} ({self.headline()})", markup=False, highlight=False, soft_wrap=True
            )

    def tick(self) -> None:
        """Redraw the live table."""
        if self.live:
            self.live.refresh()

    def headline(self) -> str:
        """Return a summary such as `4 of 12 runs done, 1 failed, 3 min left`."""
        kinds = [course.kind for course in self.courses.values()]
        words = [f"{kinds.count('finished')} of {count_of(len(kinds), 'run')} done"]
        words += [f"{kinds.count(kind)} {kind}" for kind in ("diverged", "failed") if kind in kinds]
        left = seconds_left(list(self.courses.values()), self.jobs, time.monotonic())
        return ", ".join([*words, *([f"{duration(left)} left"] if left else [])])

    def table(self) -> Group:
        """Return the table of the unfinished cells and the headline."""
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for title in ("cell", "done", "running", "wrong"):
            table.add_column(title)
        by_cell: dict[str, list[tuple[RunSlot, RunProgress]]] = {}
        for slot, course in self.courses.items():
            by_cell.setdefault(course.cell, []).append((slot, course))
        left = {name: pairs for name, pairs in by_cell.items() if any(c.kind != "finished" for _, c in pairs)}
        # Running cells first, then cells with a failure, then waiting ones.
        order = sorted(left, key=lambda name: -max(INTEREST.get(course.kind, 0) for _, course in left[name]))
        for name in order[:MOST_ROWS]:
            pairs = left[name]
            done = sum(course.kind == "finished" for _, course in pairs)
            running = [f"seed {slot.seed}: {c.done}/{c.rounds}" for slot, c in pairs if c.kind == "running"]
            wrong = [f"seed {slot.seed} {c.kind}" for slot, c in pairs if c.kind in ("diverged", "failed")]
            texts = [name, f"{done}/{len(pairs)}", ", ".join(running), ", ".join(wrong)]
            table.add_row(*(Text(printable(text)) for text in texts))
        more = [Text(f"... and {len(order) - MOST_ROWS} more cells")] if len(order) > MOST_ROWS else []
        return Group(table, *more, Text(self.headline()))


INTEREST = {"running": 2, "failed": 1, "diverged": 1}


def seconds_left(courses: Sequence[RunProgress], jobs: int, now: float) -> float | None:
    """Return the seconds left with `jobs` runs at once, by each cell's seconds per round in this call; cells
    without any take the mean of the others. None if no round has been done yet."""
    rounds: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for course in courses:
        if course.began is not None and course.done > course.first:
            rounds[course.cell] = rounds.get(course.cell, 0) + course.done - course.first
            spent = (course.ended or now) - course.began
            seconds[course.cell] = seconds.get(course.cell, 0.0) + spent
    if not rounds:
        return None
    rates = {cell: seconds[cell] / rounds[cell] for cell in rounds}
    mean = sum(rates.values()) / len(rates)
    left = [
        (course.rounds - course.done) * rates.get(course.cell, mean)
        for course in courses
        if course.kind in ("waiting", "begun", "running")
    ]
    return max([sum(left) / jobs, *left]) if left else 0.0
