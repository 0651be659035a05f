"""Studies that really run: in processes of their own, killed, failing and diverging."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sentences import check_one_sentence

from fedrecall.engines.processes import worker_main

TINY = [
    "rounds=4",
    "model=mlp",
    "model.hidden=[8]",
    "local.steps=2",
    "evaluation.test_last=2",
    "evaluation.every=2",
]
TABLES = ("table.csv", "table.md", "table.tex")


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_dry_run_lists_the_runs_and_writes_nothing(fedrecall) -> None:
    done = fedrecall("sweep", "demo", *TINY, "objective=cross_entropy,wsm", "--seeds", 2, "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == "objective=cross_entropy seed 0: waiting, 0 of 4 rounds"
    assert done.out.splitlines()[-1].startswith("4 runs, 0 done")
    assert list(Path().iterdir()) == []


def test_bad_input_ends_in_a_sentence_before_anything_is_written(fedrecall) -> None:
    for words in (
        ["demo", "objective=wsm,wsn"],
        ["demo", "--seeds", "x"],
        ["demo", "--jobs", "0"],
        ["demo", "objective=wsm,mask", "--baseline", "objective=wsm,mask"],
        ["nothing", "rounds=1,2"],
        ["demo", "data={name: npz, path: not-there.npz}"],
    ):
        done = fedrecall("sweep", *words)
        check_one_sentence(done)
    assert list(Path().iterdir()) == []


def test_a_worker_that_cannot_import_says_what(fedrecall, monkeypatch) -> None:
    code = Path(worker_main.__file__).read_text().replace("sys.path[:] = libraries", "sys.path[:] = []")
    Path("worker_main.py").write_text(code)
    monkeypatch.setattr(worker_main, "__file__", str(Path("worker_main.py").resolve()))
    done = fedrecall("sweep", "demo", *TINY, "--seeds", 2, "--out", "s", "--quiet")
    assert done.code == 1
    assert "a worker process could not begin:\n\nTraceback" in done.err
    assert "No module named 'fedrecall'" in done.err


@pytest.mark.slow
def test_cells_that_diverge_and_fail_do_not_stop_the_others_and_the_failed_are_tried_again(fedrecall) -> None:
    Path("mine.py").write_text(
        "import os, pathlib, signal\nfrom fedrecall import FedAvg\n\n\nclass Broken(FedAvg):\n"
        "    def aggregate(self, *given):\n"
        "        if not pathlib.Path('mended').exists():\n            raise KeyError('lost')\n"
        "        return super().aggregate(*given)\n\n\nclass Dying(FedAvg):\n"
        "    def aggregate(self, *given):\n        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    words = [
        "sweep",
        "demo",
        *TINY,
        "algorithm=fedavg,mine:Broken,mine:Dying",
        "local.lr=0.1,1e30",
        "--out",
        "s",
        "--quiet",
    ]
    done = fedrecall(*words, "--json")
    assert done.code == 1
    by_cell = {(line["algorithm"], str(line["local.lr"])): line for line in json.loads(done.out)["table"]}
    assert by_cell["fedavg", "0.1"]["state"] == "finished"
    assert by_cell["fedavg", "1e30"]["state"].startswith("diverged in round 1")
    assert by_cell["mine:Broken", "0.1"]["state"] == "failed: KeyError; see seed-0.log (seed 0)"
    assert by_cell["mine:Dying", "0.1"]["state"].startswith("failed: its process ended with exit code -9")
    (log,) = Path("s/runs").glob("*Broken*0.1*/seed-0.log")
    assert "KeyError: 'lost'" in log.read_text()
    assert "mine.py" in log.read_text()

    before = {path: path.stat().st_mtime_ns for path in Path("s/runs").glob("*fedavg*/*/summary.json")}
    Path("mended").touch()
    done = fedrecall(*words, "--json")
    assert done.code == 1
    states = [line["state"] for line in json.loads(done.out)["table"]]
    assert states.count("finished") == 2
    # What diverged is still so, and was not tried again.
    assert before == {path: path.stat().st_mtime_ns for path in before}


def start(words: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "fedrecall.cli.main", "sweep", *words]
    return subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def wait_until(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def lines_in(folder: str) -> int:
    return sum(path.read_text().count("\n") for path in Path(folder).glob("runs/*/*/metrics.jsonl"))


def living(marker: str) -> list[int]:
    """The processes whose environment has this marker."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


LONGER = ["demo", "objective=cross_entropy,wsm", "algorithm=fedavg,scaffold", "model=mlp", "model.hidden=[8]",
          "rounds=24", "local.steps=2", "evaluation.test_last=4", "forgetting.every=8", "checkpoint.every=3",
          "--seeds", "2", "--baseline", "objective=cross_entropy"]  # fmt: skip


@pytest.mark.slow
def test_a_study_that_is_killed_twice_ends_with_the_same_tables(fedrecall) -> None:
    whole = fedrecall("sweep", *LONGER, "--out", "whole", "--jobs", "1", "--quiet")
    assert whole.code == 0
    for rounds in (10, 100):  # of 192 in all
        killed = start([*LONGER, "--out", "killed", "--jobs", "2", "--quiet"])
        wait_until(lambda rounds=rounds: lines_in("killed") >= rounds)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
        assert not Path("killed/table.csv").exists()
    done = fedrecall("sweep", *LONGER, "--out", "killed", "--jobs", "2", "--quiet")
    assert done.code == 0
    for name in TABLES:
        assert Path("killed", name).read_bytes() == Path("whole", name).read_bytes(), name
    for path in Path("whole/runs").glob("*/*/metrics.jsonl"):
        assert path.read_bytes() == (Path("killed") / path.relative_to("whole")).read_bytes()
    some = sorted(Path("killed/runs").glob("*/seed-1"))[-1]  # is what `fedrecall run` makes of its recipe
    assert fedrecall("run", some / "recipe.yaml", "--out", "alone", "--quiet").code == 0
    assert Path("alone/metrics.jsonl").read_bytes() == (some / "metrics.jsonl").read_bytes()
    assert Path("killed/report.html").exists()
    assert fedrecall("report", "killed", "--out", "again.html").code == 0
    assert fedrecall("compare", "killed", "--accuracy", "0.3").code == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_study_leaves_checkpoints_and_no_process(how, tmp_path, monkeypatch) -> None:
    marker = f"{tmp_path.name}-{how}"
    monkeypatch.setenv("FEDRECALL_TEST_MARKER", marker)
    words = ["demo", *TINY[1:], "objective=cross_entropy,wsm", "rounds=100000", "--out", "s", "--jobs", "2"]
    parent = start(words)
    wait_until(lambda: len(list(Path("s").glob("runs/*/*/metrics.jsonl"))) == 2 and lines_in("s") > 10)
    assert len(living(marker)) == 3
    os.killpg(parent.pid, how) if how == signal.SIGINT else parent.kill()  # of the parent alone
    err = parent.communicate(timeout=60)[1]
    wait_until(lambda: not living(marker), seconds=30)
    if how == signal.SIGINT:
        assert parent.returncode == 130
        assert "stopped with 0 of 2 runs done; the same command goes on" in err
        assert len(list(Path("s").glob("runs/*/*/checkpoints/*.safetensors"))) >= 2
        assert {json.loads(path.read_text())["status"] for path in Path("s").glob("runs/*/*/summary.json")} == {
            "interrupted"
        }


@pytest.mark.slow
def test_a_sweep_from_python_goes_on_where_it_was() -> None:
    from fedrecall import sweep

    given = {
        "settings": {
            "model": {"name": "mlp", "hidden": [8]},
            "local.steps": 2,
            "rounds": 3,
            "evaluation.every": 1,
        },
        "seeds": 2,
        "report": False,
    }
    study = sweep("demo", {"objective": ["cross_entropy", "wsm"]}, **given)
    assert study.path.parent == Path("runs")
    before = (study.path / "table.csv").stat().st_mtime_ns
    times = {path: path.stat().st_mtime_ns for path in study.path.glob("runs/*/*/summary.json")}
    again = sweep("demo", {"objective": ["cross_entropy", "wsm"]}, **given)
    assert again.path == study.path
    assert len(times) == 4
    assert times == {path: path.stat().st_mtime_ns for path in times}  # nothing was carried out again
    assert before != (study.path / "table.csv").stat().st_mtime_ns
    assert [len(runs) for runs in again.runs.values()] == [2, 2]
    assert not (study.path / "report.html").exists()
