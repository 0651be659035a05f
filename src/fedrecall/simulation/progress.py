"""What a run shows while it goes: a bar on a terminal, plain lines elsewhere, nothing when asked to be quiet."""

from __future__ import annotations

import random
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

from fedrecall.measure.watcher import Round, Watcher


class ProgressLine(Watcher):
    """Watches the rounds of one run and writes to standard error."""

    def __init__(self, title: str, rounds: int, *, quiet: bool = False, console: Console | None = None) -> None:
        self.title, self.rounds, self.quiet = title, rounds, quiet
        self.began = time.perf_counter()
        self.accuracy = ""
        self.bar: Progress | None = None
        if not quiet:
            self._begin(console)

    def _begin(self, console: Console | None) -> None:
        before = random.getstate()  # rich draws random numbers when it is imported, and they are the user's
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        random.setstate(before)
        self.console = console or Console(stderr=True)
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TextColumn("{task.fields[accuracy]}"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self.task = self.bar.add_task(self.title, total=self.rounds, rate="", accuracy="")

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def after(self, round: Round) -> None:
        if self.quiet:
            return
        line = round.line
        if "val_accuracy" in line:
            self.accuracy = f"val {line['val_accuracy']:.3f}"
        rate = line["round"] / (time.perf_counter() - self.began)
        if self.bar:
            self.bar.update(self.task, completed=line["round"], rate=f"{rate:.1f}/s", accuracy=self.accuracy)
        elif "val_accuracy" in line or line["round"] == self.rounds:
            left = (self.rounds - line["round"]) / rate
            text = f"{self.title}  round {line['round']}/{self.rounds}  {self.accuracy}  {rate:.1f} rounds/s"
            self.console.print(f"{text}  {left:.0f} s left", markup=False, highlight=False, soft_wrap=True)
