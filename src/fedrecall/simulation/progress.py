"""Progress of a run: a bar on a terminal or in a notebook, plain lines elsewhere, or nothing."""

from __future__ import annotations

import html
import random
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console

from fedrecall.display import printable
from fedrecall.measure.watcher import Round, Watcher

NOTEBOOK_SECONDS = 0.2  # between updates of a notebook's bar: each is a message to the browser


class ProgressLine(Watcher):
    """Shows the progress of one run, on standard error or in the notebook."""

    def __init__(self, title: str, rounds: int, *, quiet: bool = False, console: Console | None = None) -> None:
        self.title, self.rounds = printable(title), rounds
        self.began, self.first = time.perf_counter(), 0  # the first round seen; in a resumed run not 1
        self.accuracy = ""
        self.view = None if quiet else view_for(self.title, rounds, console)

    def __enter__(self) -> Self:
        if self.view:
            self.view.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.view:
            self.view.stop()

    def after(self, round: Round) -> None:
        if not self.view:
            return
        line = round.line
        self.first = self.first or line["round"]
        if "val_accuracy" in line:
            self.accuracy = f"val {line['val_accuracy']:.3f}"
        rate = (line["round"] - self.first + 1) / (time.perf_counter() - self.began)
        self.view.show(line["round"], rate, self.accuracy, evaluated="val_accuracy" in line)


class Lines:
    """A line for each evaluation and for the last round, where nothing can be redrawn."""

    def __init__(self, title: str, rounds: int, console: Console) -> None:
        self.title, self.rounds, self.console = title, rounds, console

    def start(self) -> None: ...

    def show(self, round: int, rate: float, accuracy: str, *, evaluated: bool) -> None:
        if evaluated or round == self.rounds:
            text = f"{self.title}  {progress_text(round, self.rounds, rate, accuracy)}"
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None: ...


class Bar:
    """A progress bar in a terminal."""

    def __init__(self, title: str, rounds: int, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[accuracy]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self.task = self.bar.add_task(title, total=rounds, rate="", accuracy="")

        self.start, self.stop = self.bar.start, self.bar.stop

    def show(self, round: int, rate: float, accuracy: str, *, evaluated: bool) -> None:
        self.bar.update(self.task, completed=round, rate=f"{rate:.1f}/s", accuracy=accuracy)


class NotebookBar:
    """A progress bar in a notebook: HTML that is updated in place, which every kernel supports."""

    def __init__(self, title: str, rounds: int, display: Any) -> None:
        self.title, self.rounds, self.display = title, rounds, display
        self.handle: Any = None
        self.shown_at, self.last = 0.0, ""

    def start(self) -> None: ...

    def show(self, round: int, rate: float, accuracy: str, *, evaluated: bool) -> None:
        bar = f'<progress value="{round}" max="{self.rounds}"></progress>'
        text = progress_text(round, self.rounds, rate, accuracy)
        self.last = f"{html.escape(self.title)} {bar} {html.escape(text)}"
        if time.perf_counter() - self.shown_at > NOTEBOOK_SECONDS:
            self._draw()

    def stop(self) -> None:
        if self.last:
            self._draw()

    def _draw(self) -> None:
        content = {"text/html": self.last, "text/plain": self.title}
        if self.handle is None:
            self.handle = self.display(content, raw=True, display_id=True)
        else:
            self.handle.update(content, raw=True)
        self.shown_at = time.perf_counter()


def view_for(title: str, rounds: int, console: Console | None) -> Bar | Lines | NotebookBar:
    """Return the view that suits the environment."""
    if console is None and in_notebook():
        from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

        return NotebookBar(title, rounds, display)
    before = random.getstate()  # importing rich draws from the user's generator
    from rich.console import Console

    console = console or Console(stderr=True)
    view = (Bar if console.is_terminal else Lines)(title, rounds, console)
    random.setstate(before)
    return view


def progress_text(round: int, rounds: int, rate: float, accuracy: str) -> str:
    left = (rounds - round) / rate
    return f"round {round}/{rounds}  {accuracy}  {rate:.1f} rounds/s  {left:.0f} s left"


def wants_progress(progress: bool | None) -> bool:
    """Whether to show progress; by default in a notebook or a terminal."""
    return progress if progress is not None else in_notebook() or sys.stderr.isatty()


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
