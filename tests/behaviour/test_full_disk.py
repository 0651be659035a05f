"""A disk that is full in the middle of a run: one sentence, nothing half written, and it goes on with its bits.

A limit on the size of files stands for the full disk: both refuse a write in its middle, and in the same way.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import resource
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fuzzing import run_recipe

from fedrecall.cli import main as cli
from fedrecall.errors import InputError, WriteError
from fedrecall.measure.watcher import Round
from fedrecall.runs import checkpoint
from fedrecall.runs.client_states import StateFiles
from fedrecall.runs.folder import RunFolder
from fedrecall.simulation.progress import ProgressLine
from fedrecall.storage.atomic_files import remove_leftovers, replace_file, write_text

RECIPE: dict[str, Any] = {
    "data": "fashion_mini",
    "partition": {"name": "dirichlet", "clients": 8, "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [32]},  # 100 kB
    "rounds": 6,
    "clients_per_round": 3,
    "local": {"steps": 2, "batch_size": 16, "lr": 0.05},
    "evaluation": {"every": 2, "test_last": 2},
    "forgetting": {"every": 5},
    "checkpoint": {"every": 2},
    "execution": {"engine": "serial"},
}
SMALL = 50_000  # bytes: more than the lines of a run, less than its model


@contextmanager
def room_again() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with room_again():
        yield tmp_path


def fill_after(round: int, most: Callable[[], int], patch: pytest.MonkeyPatch) -> None:
    """From the end of this round on, no file can become larger than that."""

    def watch(self: ProgressLine, seen: Round) -> None:
        if seen.number == round:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (most(), hard))

    patch.setattr(ProgressLine, "after", watch)


def size_of(name: str) -> int:
    return Path("full", name).stat().st_size


def contents(folder: str) -> dict[str, bytes]:
    """What must be the same: all but times, the machine, and how the run went."""
    names = ["metrics.jsonl", "clients.jsonl", "model.safetensors", "partition.npz"]
    names += [str(path.relative_to(folder)) for path in sorted(Path(folder).glob("forgetting/*"))]
    return {name: Path(folder, name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    """The contents of a run with room enough, by its algorithm; made when they are first asked for."""

    @functools.cache
    def made(algorithm: str) -> dict[str, bytes]:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path_factory.mktemp("whole"))
            Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "algorithm": algorithm}))
            run_recipe("run")
            return contents("run")

    return made


# The algorithm, the last good round, how large files may be after it, what fails, and the checkpoint that is left.
CASES = {
    "a checkpoint": ("fedavg", 3, lambda: SMALL, "checkpoints/round-000004.safetensors", 2),
    "a line": ("fedavg", 3, lambda: size_of("metrics.jsonl") + 20, "metrics.jsonl", 2),
    "a client's state": ("scaffold", 3, lambda: SMALL, "clients/0000/client-", 2),
    "a probe": ("fedavg", 4, lambda: size_of("metrics.jsonl") + 600, "forgetting/round-00005.npz", 4),
    "the model": ("fedavg", 6, lambda: SMALL, "model.safetensors", 6),
    "everything": ("fedavg", 6, lambda: 0, "model.safetensors", 6),
}


@pytest.mark.parametrize("what", CASES)
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_with_its_bits(
    fedrecall: Any, whole: Callable[[str], dict[str, bytes]], place: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    algorithm, last, most, file, safe = CASES[what]
    Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "algorithm": algorithm}))
    with room_again(), monkeypatch.context() as patch:
        fill_after(last, most, patch)
        ended = fedrecall("run", "recipe.yaml", "--out", "full")
    assert ended.code == 2
    (sentence,) = ended.err.splitlines()
    assert sentence.startswith(f"fedrecall: error: the file 'full/{file}")
    assert sentence.endswith(" cannot be written: File too large; make room and go on with: fedrecall resume full")
    check_nothing_is_half_written(safe)
    done = fedrecall("resume", "full", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert contents("full") == whole(algorithm)
    assert json.loads(Path("full/summary.json").read_text())["status"] == "finished"


def check_nothing_is_half_written(safe: int) -> None:
    assert not [path for path in Path("full").rglob("*") if ".part" in path.name]
    point, wrong = checkpoint.newest(Path("full/checkpoints"))
    assert point is not None
    assert (point.round, wrong) == (safe, [])
    assert len(list(Path("full/checkpoints").iterdir())) == 2 * len(checkpoint.notes(Path("full/checkpoints")))
    for name in ("metrics.jsonl", "clients.jsonl", "timings.jsonl"):
        for line in Path("full", name).read_text().splitlines():
            json.loads(line)


def test_a_page_that_does_not_fit_leaves_a_complete_run_and_the_command_that_makes_it(
    fedrecall: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    with room_again(), monkeypatch.context() as patch:
        fill_after(6, lambda: 1_000_000, patch)  # more than the model, less than the page
        ended = fedrecall("run", "recipe.yaml", "--out", "it is full")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines()[-1] == (
        "fedrecall: error: the file 'it is full/report.html' cannot be written: File too large; the run is "
        "complete: make room, and this makes the page: fedrecall report 'it is full'"
    )
    assert json.loads(Path("it is full/summary.json").read_text())["status"] == "finished"
    assert not [path for path in Path("it is full").rglob("*") if ".part" in path.name]
    command = shlex.split(ended.err.rpartition("the page: ")[2])
    assert fedrecall(*command[1:]).code == 0
    assert Path("it is full/report.html").stat().st_size > 1_000_000


def test_a_page_that_does_not_fit_after_several_runs_is_made_by_one_command(
    fedrecall: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["model=mlp", "model.hidden=[]", "rounds=1", "clients_per_round=2", "evaluation.test_last=1"]
    with room_again(), monkeypatch.context() as patch:
        fill_after(1, lambda: 1_000_000, patch)
        ended = fedrecall("demo", *small, "--out", "both", "--engine", "serial")
    assert ended.code == 2
    assert ended.err.endswith("the runs are complete: make room, and this makes the page: fedrecall report both\n")
    assert fedrecall("report", "both").code == 0
    assert Path("both/report.html").exists()


def test_what_a_killed_process_left_of_a_page_goes_when_the_page_is_written(
    fedrecall: Any, place: Path, make_run: Any
) -> None:
    run = make_run(place / "run")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (run / f".report.{ended.pid}.part.html").write_text("half")
    (run / f".report.{os.getppid()}.part.html").write_text("being written by another")
    assert fedrecall("report", run).code == 0
    assert [path.name for path in run.glob(".*.part.*")] == [f".report.{os.getppid()}.part.html"]


def test_a_folder_in_which_a_run_was_killed_before_its_first_file_is_used_again(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in ("lock", f".recipe.{ended.pid}.part.yaml"):
        (tmp_path / name).touch()
    RunFolder.create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    (tmp_path / "mine").touch()
    with pytest.raises(InputError, match="is not empty; choose another with --out"):
        RunFolder.create(tmp_path)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_all_files_of_a_run_have_the_permissions_of_new_files(fedrecall: Any, place: Path, mask: int) -> None:
    Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "algorithm": "scaffold", "rounds": 2}))
    before = os.umask(mask)
    try:
        assert fedrecall("run", "recipe.yaml", "--out", "run", "--quiet").code == 0
    finally:
        os.umask(before)
    modes = {str(path): stat.S_IMODE(path.stat().st_mode) for path in Path("run").rglob("*") if path.is_file()}
    modes.pop("run/lock")  # of a library, and without content
    assert len(modes) > 10
    assert {name for name, mode in modes.items() if mode != 0o666 & ~mask} == set()


def test_a_link_that_lies_where_a_file_is_written_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / f".a.{os.getpid()}.part.txt").symlink_to(tmp_path / "mine")
    write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "a.txt").read_text() == "new"


SCRIPT = """
import resource, sys
from pathlib import Path
from fedrecall.cli.main import main
from fedrecall.simulation.progress import ProgressLine

def watch(self, round):
    if round.number == 3:  # here and in the workers
        children = " ".join(file.read_text() for file in Path("/proc/self/task").glob("*/children"))
        for pid in [0, *map(int, children.split())]:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))

ProgressLine.after = watch
sys.argv = ["fedrecall", "run", "recipe.yaml", "--out", "full", *sys.argv[1:]]
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--engine", "serial"], ["--engine", "processes", "--workers", "2"]])
def test_a_full_disk_in_a_process_of_its_own(fedrecall: Any, place: Path, words: list[str]) -> None:
    Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "algorithm": "scaffold"}))
    assert fedrecall("run", "recipe.yaml", "--out", "whole", "--quiet").code == 0
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 2, ended.stderr
    (sentence,) = ended.stderr.splitlines()
    assert sentence.startswith("fedrecall: error: the file 'full/clients/0000/client-")
    assert sentence.endswith("File too large; make room and go on with: fedrecall resume full")
    check_nothing_is_half_written(2)
    assert fedrecall("resume", "full", "--quiet").code == 0
    assert contents("full") == contents("whole")


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def stopped(path: Path, error: OSError) -> None:
    with replace_file(path) as beside:
        beside.write_text("ne")
        raise error


def test_a_file_is_as_it_was_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(WriteError, match=r"a\.txt' cannot be written: No space left on device"):
        stopped(path, full())
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.txt", "old")]
    write_text(path, "new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.txt", "new")]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    with replace_file(tmp_path / "a.npz") as beside:
        beside.write_text("mine")
    beside.write_text("half")  # as SIGKILL leaves it
    (tmp_path / ".a.7.part.npz").mkdir()
    remove_leftovers(tmp_path, tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".a.7.part.npz", "a.npz"]


def test_a_state_that_does_not_fit_leaves_nothing(place: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    with pytest.raises(WriteError, match=r"cannot be written: File too large$"):
        StateFiles(place / "clients").put(3, 1, {"c": torch.zeros(1000)})
    assert not [path for path in place.rglob("*") if path.is_file()]


def test_no_half_line_is_left_and_the_next_one_is_whole(place: Path) -> None:
    folder = RunFolder.create(place / "run")
    folder.append("metrics.jsonl", {"round": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    with pytest.raises(WriteError, match=r"metrics\.jsonl' cannot be written"):
        folder.append("metrics.jsonl", {"round": 2})
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    folder.append("metrics.jsonl", {"round": 3})
    folder.close()
    assert (place / "run" / "metrics.jsonl").read_text() == '{"round": 1}\n{"round": 3}\n'


def test_a_full_disk_elsewhere_is_one_sentence_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise full()

    monkeypatch.setattr(cli.fedrecall, "main", fails)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert capsys.readouterr().err == "fedrecall: error: the disk is full: [Errno 28] No space left on device\n"
