"""Studies whose runs are spread over a real Ray cluster, here on one machine: the bits are those without it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from ray_cluster import add_node, start

from fedrecall import sweep
from fedrecall.engines.ray.states import FolderToken
from fedrecall.recipe.code_keys import names_code
from fedrecall.runs.ledger import unknown_reason
from fedrecall.studies.cells import RunSlot
from fedrecall.studies.progress import Progress

pytestmark = pytest.mark.heavy

TINY = ["demo", "model=mlp", "model.hidden=[8]", "local.steps=2", "evaluation.test_last=2", "evaluation.every=2"]
END = ["--no-report", "--quiet"]
SHORT = [*TINY, "objective=cross_entropy,wsm", "rounds=2", "--seeds", "2", *END]
LONG = [*TINY, "objective=cross_entropy,wsm", "algorithm=scaffold", "rounds=400", "checkpoint.every=5", *END]
SAME = ("metrics.jsonl", "model.safetensors", "partition.npz", "clients.jsonl")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and a node, with room for one run each."""
    started = start(nodes=1)
    yield started
    started.shutdown()


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def on_ray(cluster: Any) -> list[str]:
    return ["--engine", "ray", "--ray-address", cluster.address]


def bits(study: str) -> dict[str, bytes]:
    """The table and what the runs came to."""
    paths = [Path(study, "table.csv"), *(path for name in SAME for path in Path(study).glob(f"runs/*/*/{name}"))]
    return {str(path.relative_to(study)): path.read_bytes() for path in paths}


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> dict[RunSlot, int]:
    """How far each run is, as the study's process is told."""
    found: dict[RunSlot, int] = {}
    real = Progress.seen

    def seen(progress: Progress, slot: RunSlot, kind: str, what: Any) -> None:
        real(progress, slot, kind, what)
        if kind == "round":
            found[slot] = what

    monkeypatch.setattr(Progress, "seen", seen)
    return found


def both_are_under_way(rounds: dict[RunSlot, int]) -> bool:
    return len(rounds) == 2 and min(rounds.values()) > 10


@contextmanager
def once(condition: Callable[[], bool], then: Callable[[], object]) -> Iterator[None]:
    """Inside, `then` is called from another thread when it is so."""

    def watch() -> None:
        wait_until(condition)
        then()

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    thread.join()


def never_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node finds what would be in the study's folder, as if it had another disk."""
    monkeypatch.setattr(FolderToken, "leave", lambda token: None)


def left_behind() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("fedrecall-run-*"))


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What the studies come to without Ray."""
    from fedrecall.cli import main as cli

    found = {}
    for name, words in (("short", SHORT), ("long", LONG)):
        path = tmp_path_factory.mktemp("without") / name
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["fedrecall", "sweep", *words, "--engine", "serial", "--out", str(path)])
            cli.main()
        found[name] = bits(str(path))
    assert [len(each) for each in found.values()] == [1 + 4 * len(SAME), 1 + 2 * len(SAME)]
    return found


def test_a_study_on_a_cluster_has_the_bits_of_one_without(fedrecall: Any, on_ray: list[str], without: Any) -> None:
    done = fedrecall("sweep", *SHORT, *on_ray, "--out", "s")
    assert (done.code, done.err) == (0, "")
    assert bits("s") == without["short"]
    assert list(Path("s").glob(".*")) == []
    before = {path: path.stat().st_mtime_ns for path in Path("s").glob("runs/*/*/summary.json")}
    assert fedrecall("sweep", *SHORT, *on_ray, "--out", "s", "--jobs", "1").code == 0  # has nothing to do
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_nodes_that_do_not_reach_the_folder_send_their_runs_back(
    cluster: Any, without: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_seen(monkeypatch)
    settings = {"model": {"name": "mlp", "hidden": [8]}, "local.steps": 2, "rounds": 2}
    study = sweep(
        "demo",
        {"objective": ["cross_entropy", "wsm"]},
        seeds=2,
        settings={**settings, "evaluation.test_last": 2, "evaluation.every": 2},
        execution={"engine": "ray", "ray_address": cluster.address},
        out="s",
        report=False,
    )
    assert bits("s") == without["short"]
    assert {state.kind for state in study.states.values()} == {"finished"}
    assert sorted(path.name for path in Path("s").glob("runs/*/*")) == ["seed-0", "seed-0", "seed-1", "seed-1"]
    assert left_behind() == set()


def test_a_run_whose_node_dies_goes_on_elsewhere_with_the_same_bits(
    fedrecall: Any, cluster: Any, on_ray: list[str], without: Any, rounds: dict[RunSlot, int]
) -> None:
    (node,) = cluster.worker_nodes
    with once(lambda: both_are_under_way(rounds), lambda: cluster.remove_node(node, allow_graceful=False)):
        done = fedrecall("sweep", *LONG, *on_ray, "--out", "s")
    add_node(cluster)
    assert (done.code, done.err) == (0, "")
    events = [path.read_text() for path in Path("s").glob("runs/*/*/events.jsonl")]
    assert sum("resumed after round" in text for text in events) == 1  # the other was not disturbed
    assert bits("s") == without["long"]


@pytest.mark.parametrize(("number", "apart"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_a_study_that_is_stopped_leaves_checkpoints_and_goes_on(
    fedrecall: Any, on_ray: list[str], without: Any, rounds: Any, number: int, apart: bool, monkeypatch: Any
) -> None:
    if apart:
        never_seen(monkeypatch)
    with once(lambda: both_are_under_way(rounds), lambda: os.kill(os.getpid(), number)):
        done = fedrecall("sweep", *LONG, *on_ray, "--out", "s")
    assert (done.code, "stopped with 0 of 2 runs done; the same command goes on" in done.err) == (130, True)
    statuses = [json.loads(path.read_text())["status"] for path in Path("s").glob("runs/*/*/summary.json")]
    assert statuses == ["interrupted"] * 2
    assert fedrecall("sweep", *LONG, *on_ray, "--out", "s").code == 0
    events = [path.read_text() for path in Path("s").glob("runs/*/*/events.jsonl")]
    assert ["resumed after round" in text for text in events] == [True] * 2
    assert bits("s") == without["long"]
    assert left_behind() == set()


def test_a_study_whose_process_is_killed_goes_on(fedrecall: Any, on_ray: list[str], without: Any) -> None:
    words = ["sweep", *LONG, *on_ray, "--out", "s"]
    driver = subprocess.Popen([sys.executable, "-P", "-m", "fedrecall.cli.main", *words])
    done = Path("s/runs").glob
    wait_until(lambda: sum(path.read_text().count("\n") for path in done("*/*/metrics.jsonl")) > 20)
    driver.kill()
    driver.wait()
    assert not list(done("*/*/summary.json"))
    assert fedrecall(*words).code == 0
    assert bits("s") == without["long"]
    assert list(Path("s").glob(".*")) == []  # nor of the one that was killed


def test_a_run_that_ends_every_process_fails_after_three_others(fedrecall: Any, on_ray: list[str]) -> None:
    Path("dying_on_ray.py").write_text(
        "import os, pathlib\nfrom fedrecall import FedAvg\n\n\nclass Dying(FedAvg):\n"
        "    def aggregate(self, *given):\n        with pathlib.Path('tries').open('a') as file:\n"
        "            file.write('x')\n        os._exit(7)\n"
    )
    done = fedrecall("sweep", *TINY, "algorithm=dying_on_ray:Dying", "rounds=2", *END, *on_ray, "--out", "s")
    assert done.code == 1
    words = Path("s/runs/all/seed-0.failed").read_text()
    assert words == "its worker died, or the node that it was on, 4 times\n"
    assert Path("tries").read_text() == "xxxx"


def test_a_run_of_code_of_the_users_that_is_sent_back_is_the_users_and_its_log_names_its_place(
    fedrecall: Any, on_ray: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    never_seen(monkeypatch)
    Path("broken.py").write_text(
        "from fedrecall import FedAvg\n\n\nclass Broken(FedAvg):\n"
        "    def aggregate(self, *given):\n        raise KeyError('lost')\n"
    )
    done = fedrecall("sweep", *TINY, "algorithm=broken:Broken", "rounds=2", *END, *on_ray, "--out", "s")
    assert done.code == 1
    run = Path("s/runs/all/seed-0").resolve()
    assert Path("s/runs/all/seed-0.failed").read_text() == "KeyError; see seed-0.log\n"
    assert f"fedrecall resume {run}\n" in Path("s/runs/all/seed-0.log").read_text()
    assert unknown_reason(run, names_code(yaml.safe_load((run / "recipe.yaml").read_text()))) is None


def test_data_that_a_node_has_not_fail_its_runs_in_a_sentence(
    fedrecall: Any, on_ray: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    x = np.zeros((24, 3), np.float32)
    np.savez(tmp_path / "data/my.npz", x_train=x, y_train=np.arange(24) % 3, x_test=x, y_test=np.arange(24) % 3)
    monkeypatch.setenv("FEDRECALL_DATA", str(tmp_path / "data"))  # of this process, not of the nodes
    words = ["data={name: npz, path: my.npz}", "partition={name: iid, clients: 2}", "rounds=1"]
    done = fedrecall("sweep", *TINY, *words, *END, *on_ray, "--out", "s")
    assert done.code == 1
    assert "my.npz" in Path("s/runs/all/seed-0.failed").read_text()
    assert "fedrecall: error: " in Path("s/runs/all/seed-0.log").read_text()


def test_a_cluster_without_room_is_refused_before_anything_is_written(fedrecall: Any, on_ray: list[str]) -> None:
    Path("large.yaml").write_text("base: demo\nexecution: {resources: {CPU: 5}}\n")
    done = fedrecall("sweep", "large.yaml", "rounds=1,2", *on_ray, "--out", "s")
    assert (done.code, done.out) == (2, "")
    assert "a worker with 5 CPU was asked for" in done.err
    assert "the cluster has room for 0: 2 nodes (1 CPU; 1 CPU)" in done.err
    assert not Path("s").exists()


def test_as_many_runs_go_at_once_as_there_is_room_for_or_jobs_says(fedrecall: Any, on_ray: list[str]) -> None:
    plan = ["sweep", *SHORT, *on_ray, "--dry-run"]
    assert "4 runs, 0 done, 2 at once" in fedrecall(*plan).out
    assert "4 runs, 0 done, 1 at once" in fedrecall(*plan, "--jobs", "1").out
    assert "--jobs says how many go at once" in fedrecall(*plan, "--workers", "2").err
