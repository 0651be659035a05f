"""Every block of docs/report.md runs as it stands, and the figures it names are the ones that are drawn."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "report.md").read_text()
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def run_lines(block: str, fedrecall: Any) -> str:
    for line in block.splitlines():
        program, *words = shlex.split(line)
        assert program == "fedrecall"
        finished = fedrecall(*words)
        assert finished.code == 0, finished.err
    last: str = finished.out.splitlines()[-1]
    return last


@pytest.mark.slow
def test_the_blocks_run(fedrecall: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (_, compare), (_, figures), (_, options), (kind, script) = BLOCK.findall(PAGE)
    monkeypatch.chdir(tmp_path)
    assert run_lines(compare, fedrecall) == "comparison/report.html"
    for path in Path("runs").iterdir():
        path.rename(f"moved-{path.name}")
    assert run_lines(figures, fedrecall) == "paper/report.html"
    drawn = {path.name for path in Path("paper/figures").iterdir()}
    for name in (
        "forgetting-round-00002",
        "forgetting-round-00004",
        "forgetting",
        "convergence",
        "accuracy-alpha",
    ):
        assert {f"{name}.{suffix}" for suffix in ("png", "svg", "pdf")} <= drawn
    assert run_lines(options, fedrecall) == "column/report.html"
    assert Path("column/figures/convergence.pdf").exists()
    assert kind == "python"
    exec(compile(script, "docs/report.md", "exec"), {})
    assert Path("report.html").stat().st_size > 1_000_000
