"""`fedrecall report`, as a user types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_ends_with_the_path_of_the_page(fedrecall, make_run: Callable[..., Path]) -> None:
    make_run(Path("runs/a"))
    make_run(Path("runs/b"), seed=1)
    assert fedrecall("report", "runs/a").out == "runs/a/report.html\n"
    assert fedrecall("report", "runs").out == "runs/report.html\n"
    assert fedrecall("report", "runs/a", "runs/b").out == "report.html\n"
    assert fedrecall("report", "runs", "--out", "x/y.html").out == "x/y.html\n"
    for path in ("runs/a/report.html", "runs/report.html", "report.html", "x/y.html"):
        assert Path(path).stat().st_size > 1_000_000, path


def test_figures_lie_beside_the_page(fedrecall, make_run: Callable[..., Path]) -> None:
    make_run(Path("a"))
    finished = fedrecall("report", "a", "--figures", "--rounds", "4", "--out", "here", "--json")
    result = json.loads(finished.out)
    assert result["report"] == "here/report.html"
    assert "here/figures/forgetting-round-00004.pdf" in result["figures"]
    assert all(Path(path).is_file() for path in result["figures"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "there is no run's folder 'nowhere'"),
        (["."], "the folder '.' is no run and has none in it: recipe.yaml is missing"),
        (["a", "--rounds", "4"], "--rounds is '4', but it is for the figures: say --figures too"),
        (["a", "--figures", "--rounds", "x"], "--rounds is 'x'; numbers of rounds were expected, as in 1200,3600"),
        ([], "Missing argument 'RUN...'. See: fedrecall report --help"),
    ],
)
def test_bad_input_is_one_sentence(fedrecall, make_run: Callable[..., Path], words: list[str], said: str) -> None:
    if "a" in words:
        make_run(Path("a"))
    finished = fedrecall("report", *words)
    assert finished.code == 2
    assert finished.err == f"fedrecall: error: {said}\n"


def test_help_has_an_example(fedrecall) -> None:
    assert "Example: fedrecall report" in fedrecall("report", "--help").out
