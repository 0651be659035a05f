"""What is shown while a study goes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedrecall.studies.cells import cells_of, plan
from fedrecall.studies.design import load_design
from fedrecall.studies.folder import State
from fedrecall.studies.progress import Progress, RunProgress, seconds_left


def test_the_time_left_is_that_of_the_rounds_left() -> None:
    done = RunProgress("a", 10, done=10, began=0.0, ended=20.0, kind="finished")  # 2 s a round
    half = RunProgress("a", 10, done=5, first=0, began=0.0, kind="running")  # in 10 s: 2 s a round
    other = RunProgress("b", 30, kind="waiting")  # of which nothing is known: 2 s a round too
    kept = RunProgress("a", 10, done=10, first=10, kind="finished")  # from before: says nothing
    assert seconds_left([done, half, other, kept], 1, now=10.0) == pytest.approx(5 * 2 + 30 * 2)
    assert seconds_left([done, half, other, kept], 2, now=10.0) == pytest.approx(60)  # the longest alone takes that
    assert seconds_left([other], 1, now=10.0) is None


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_has_a_table_and_a_pipe_has_lines(terminal: bool) -> None:
    design = load_design("demo", {"objective": ["wsm", "mask"]}, seeds=2, settings={"rounds": 8})
    runs = plan(design, cells_of(design))
    states = {run.slot: State("waiting") for run in runs}
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100)
    with Progress(runs, states, 2, console=console) as progress:
        for run in runs[:2]:
            progress.seen(run.slot, "began", None)
        progress.seen(runs[0].slot, "round", 3)
        progress.seen(runs[1].slot, "failed", "KeyError")
        console.print(progress.table())
    shown = file.getvalue()
    assert "seed 0: 3/8" in shown
    assert "0 of 4 runs done, 1 failed" in shown
    assert ("objective=mask seed 0: failed: KeyError" in shown) is not terminal
