"""What a run shows while it goes: a bar where one can be drawn, lines elsewhere, and when it shows nothing."""

from __future__ import annotations

import io
import sys
import types
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedrecall.simulation import progress
from fedrecall.simulation.progress import ProgressLine, wants_progress


def rounds(shown: ProgressLine, *numbers: int, evaluated: bool = True) -> None:
    for number in numbers:
        measured = {"val_accuracy": 0.5} if evaluated else {}
        shown.after(SimpleNamespace(line={"round": number, **measured}))  # type: ignore[arg-type]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


def test_lines_where_nothing_can_be_drawn(clock) -> None:
    text = io.StringIO()
    with ProgressLine("mine", 4, console=Console(file=text)) as shown:
        clock[0] = 2.0
        rounds(shown, 1)
        rounds(shown, 2, 3, evaluated=False)
        clock[0] = 4.0
        rounds(shown, 4)
    assert text.getvalue().splitlines() == [
        "mine  round 1/4  val 0.500  0.5 rounds/s  6 s left",
        "mine  round 4/4  val 0.500  1.0 rounds/s  0 s left",
    ]


def test_the_rate_of_a_resumed_run_is_that_of_the_rounds_it_made(clock) -> None:
    text = io.StringIO()
    with ProgressLine("mine", 110, console=Console(file=text)) as shown:
        clock[0] = 1.0
        rounds(shown, 101)
    assert "1.0 rounds/s  9 s left" in text.getvalue()


def test_a_bar_in_a_terminal() -> None:
    text = io.StringIO()
    with ProgressLine("mine", 4, console=Console(file=text, force_terminal=True, width=100)) as shown:
        rounds(shown, 1, 2, 3, 4)
    assert "━" in text.getvalue()
    assert "4/4" in text.getvalue()


class Kernel:
    """What a notebook's kernel gives to those who display something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shell: object) -> None:
        self.shown: list[str] = []
        ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
        ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
        display.display = self.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def display(self, content: dict[str, str], **options: object) -> Kernel:
        assert options == {"raw": True, "display_id": True}
        self.shown.append(content["text/html"])
        return self

    def update(self, content: dict[str, str], **options: object) -> None:
        self.shown[-1] = content["text/html"]


def test_one_bar_in_a_notebook_whose_text_is_text(monkeypatch, clock, capsys) -> None:
    kernel = Kernel(monkeypatch, SimpleNamespace(kernel=object()))
    assert wants_progress(None)
    with ProgressLine("<b>mine</b>", 4) as shown:
        clock[0] = 2.0
        rounds(shown, 1, 2, 3, 4)
    assert len(kernel.shown) == 1
    assert kernel.shown[0].startswith('&lt;b&gt;mine&lt;/b&gt; <progress value="4" max="4"></progress> round 4/4')
    assert capsys.readouterr() == ("", "")


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch) -> None:
    Kernel(monkeypatch, SimpleNamespace())
    assert not wants_progress(None)


@pytest.mark.parametrize("terminal", [True, False])
def test_nobody_looks_at_what_is_no_terminal_unless_they_say_so(monkeypatch, terminal) -> None:
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: terminal))
    assert wants_progress(None) is terminal
    assert wants_progress(True)
    assert not wants_progress(False)
