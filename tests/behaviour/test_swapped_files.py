"""Each file of a run with a folder, a pipe or a link in its place: every command goes on or says so, and soon."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzzing import listing, make_finished_run
from sentences import check_one_sentence

STATE = "clients/0000/client-000001-round-000003.safetensors"
FILES = [
    *("recipe.yaml", "environment.json", "metrics.jsonl", "timings.jsonl", "clients.jsonl", "events.jsonl"),
    *("partition.json", "partition.npz", "model.safetensors", "summary.json", "report.html", "lock"),
    *("forgetting/round-00002.npz", "checkpoints/round-000003.json", "checkpoints/round-000003.safetensors"),
    *("checkpoints/round-000002.json", "checkpoints/round-000002.safetensors", STATE),
    *(STATE.replace("003.s", "002.s"), "forgetting", "checkpoints", "clients", "clients/0000"),
]
COMMANDS = {
    "report": ("report", "run"),
    "resume": ("resume", "run", "rounds=4", "--quiet"),
    "replay": ("replay", "run", "--round", "3", "--client", "1"),
    "diagnose": ("diagnose", "run", "--engine", "serial", "--quiet", "--out", "diagnosis"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run in `kept`."""
    folder = tmp_path_factory.mktemp("home")
    make_finished_run(folder)
    (folder / "kept" / "report.html").write_text("a page")
    return folder


@pytest.fixture(autouse=True)
def in_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setattr("plotly.offline.get_plotlyjs", str)
    for name in ("run", "diagnosis"):
        shutil.rmtree(name, ignore_errors=True)
    shutil.copytree("kept", "run")


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    """What waits for a pipe without end fails here."""

    def over(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def put_folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("mine")


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_loop(path: Path) -> None:
    path.symlink_to(path.name)


SWAPS = {"a folder": put_folder, "a pipe": put_pipe, "a link to itself": put_loop}
# Each command with each file, the swaps in turns; the others are slow.
CASES = [
    pytest.param(swap, name, command, marks=() if (s + f + c) % len(SWAPS) == 0 else pytest.mark.slow)
    for (s, swap), (f, name), (c, command) in itertools.product(*map(enumerate, (SWAPS, FILES, COMMANDS)))
]


@pytest.mark.parametrize(("swap", "name", "command"), CASES)
def test_whatever_lies_in_place_of_a_file_a_command_goes_on_or_says_so(
    fedrecall: Any, swap: str, name: str, command: str
) -> None:
    path = Path("run", name)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    SWAPS[swap](path)
    finished = fedrecall(*COMMANDS[command])
    assert finished.code in (0, 2), finished.err
    if finished.code == 2:
        check_one_sentence(finished, silent=False)
    if swap == "a folder" and not finished.code and (path / "inside").exists():
        assert (path / "inside").read_text() == "mine"


@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl", "clients.jsonl", "events.jsonl"])
def test_no_line_is_written_where_a_link_leads(fedrecall: Any, name: str) -> None:
    path = Path("run", name)
    path.unlink(missing_ok=True)
    path.symlink_to("../outside")
    finished = fedrecall(*COMMANDS["resume"])
    assert (finished.code, finished.err.count("\n")) == (2, 1)
    assert not Path("outside").exists()
    Path("outside").write_text("mine")
    shutil.rmtree("run")
    shutil.copytree("kept", "run")
    path.unlink(missing_ok=True)
    path.symlink_to("../outside")
    fedrecall(*COMMANDS["resume"])
    assert Path("outside").read_text() == "mine"
    Path("outside").unlink()


def test_what_links_lead_to_is_read_and_not_changed(fedrecall: Any) -> None:
    """Every file of the run is a link to a file outside that is as good."""
    outside = Path("outside").resolve()
    shutil.rmtree(outside, ignore_errors=True)
    shutil.copytree("kept", outside)
    for path in [path for path in Path("run").rglob("*") if path.is_file() and path.name != "lock"]:
        path.unlink()
        path.symlink_to(outside / path.relative_to("run"))
    before = listing(outside)
    for command, words in COMMANDS.items():
        finished = fedrecall(*words)
        assert (command, finished.code, finished.err) == (command, 0, "")
    assert listing(outside) == before
    shutil.rmtree(outside)
