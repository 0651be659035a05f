"""A run that was stopped and resumed, any number of times, is the run that was not."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from fuzzing import run_recipe

from fedrecall.runs import checkpoint
from fedrecall.runs.folder import RunFolder

# Batch norm, client state, server state, probes, evaluations: everything that a round may depend on.
MODEL = """
from torch import nn

def net(sample_shape, num_classes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, num_classes)
    )
"""
RECIPE = {
    "data": "fashion_mini",
    "partition": {"name": "dirichlet", "clients": 8, "alpha": 0.5},
    "model": "mynet:net",
    "rounds": 12,
    "clients_per_round": 3,
    "local": {"steps": 2, "batch_size": 16, "lr": 0.05},
    "evaluation": {"every": 2, "test_last": 2},
    "forgetting": {"every": 4},
    "checkpoint": {"every": 3},
    "execution": {"engine": "serial"},
}


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mynet.py").write_text(MODEL)
    return tmp_path


def write(**settings) -> None:
    Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, **settings}))


def files(folder: str) -> dict[str, bytes]:
    """What must be the same: all but times, the machine, and how the run went."""
    path = Path(folder)
    names = ["metrics.jsonl", "clients.jsonl", "model.safetensors", "partition.npz"]
    names += sorted(str(part.relative_to(path)) for part in path.glob("forgetting/*"))
    return {name: (path / name).read_bytes() for name in names if (path / name).exists()}


def settings_of(algorithm: str) -> dict[str, object]:
    return {"algorithm": algorithm, **({"forgetting": {"every": 0}} if algorithm == "local_only" else {})}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    """The files of a run that nothing interrupted, by its algorithm; made when they are first asked for."""

    @functools.cache
    def made(algorithm: str) -> dict[str, bytes]:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path_factory.mktemp("whole"))
            Path("mynet.py").write_text(MODEL)
            write(**settings_of(algorithm))
            run_recipe("run")
            assert Path("run/model.safetensors").exists() == (algorithm != "local_only")
            return files("run")

    return made


def stop_after(fedrecall, monkeypatch, rounds: int, *words: object) -> None:
    """Run a command that is interrupted after some of its rounds."""
    left = [rounds]

    def watch(self, round) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedrecall.simulation.progress.ProgressLine.after", watch)
        assert fedrecall(*words).code == 130


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedadam", "moon", "local_only"])
def test_interrupted_and_resumed_is_uninterrupted(algorithm, fedrecall, whole, place, monkeypatch) -> None:
    write(**settings_of(algorithm))
    stop_after(fedrecall, monkeypatch, 4, "run", "recipe.yaml", "--out", "stopped")
    summary = json.loads(Path("stopped/summary.json").read_text())
    assert (summary["status"], summary["rounds_done"]) == ("interrupted", 4)
    stop_after(fedrecall, monkeypatch, 1, "resume", "stopped")
    stop_after(fedrecall, monkeypatch, 4, "resume", "stopped")
    done = fedrecall("resume", "stopped", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert files("stopped") == whole(algorithm)
    assert json.loads(Path("stopped/summary.json").read_text())["status"] == "finished"
    events = [json.loads(line) for line in Path("stopped/events.jsonl").read_text().splitlines()]
    assert [event["round"] for event in events if event["event"] == "resume"] == [4, 5, 9]


def test_a_killed_run_goes_on_from_its_last_checkpoint(fedrecall, whole, place) -> None:
    write(algorithm="scaffold")
    # As SIGKILL leaves it after round 8: lines and states of rounds 7 and 8, half a line, checkpoint 6.
    assert fedrecall("run", "recipe.yaml", "rounds=8", "--out", "killed", "--quiet").code == 0
    folder = Path("killed")
    for name in ("round-000008.json", "round-000008.safetensors"):
        (folder / "checkpoints" / name).unlink()
    (folder / "summary.json").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 9, "cli')
    done = fedrecall("resume", "killed", "rounds=12", "--quiet")
    assert (done.code, done.err) == (0, "")
    ours, theirs = files("killed"), whole("scaffold")
    assert ours["model.safetensors"] == theirs["model.safetensors"]
    # Of the shorter run, rounds 7 and 8 were the last and tested; they are made again, as of the longer one.
    assert ours["metrics.jsonl"] == theirs["metrics.jsonl"]


def test_a_run_without_a_checkpoint_starts_again(fedrecall, whole, place) -> None:
    write()
    assert fedrecall("run", "recipe.yaml", "rounds=2", "--out", "young", "--quiet").code == 0
    for path in (*Path("young/checkpoints").iterdir(), Path("young/summary.json")):  # killed before the first
        path.unlink()
    assert fedrecall("resume", "young", "rounds=12", "--quiet").code == 0
    assert files("young") == whole("fedavg")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["rounds=3"], "has all its 3 rounds; rounds=N makes it longer"),
        (["local.lr=0.3"], "'local.lr=0.3' is given, but a resumed run may change rounds"),
        (["--engine", "vectorised", "rounds=4"], "'vectorised'"),
    ],
)
def test_what_cannot_be_resumed_is_said_in_a_sentence(words, sentence, fedrecall, place) -> None:
    write(model={"name": "mlp", "hidden": [8]})
    assert fedrecall("run", "recipe.yaml", "rounds=3", "--out", "done", "--quiet").code == 0
    before = {path: path.read_bytes() for path in Path("done").rglob("*") if path.is_file()}
    done = fedrecall("resume", "done", *words)
    assert done.code == 2
    assert sentence in done.err
    assert {path: path.read_bytes() for path in Path("done").rglob("*") if path.is_file()} == before


def test_another_device_needs_a_word(fedrecall, place) -> None:
    write()
    assert fedrecall("run", "recipe.yaml", "rounds=3", "--out", "done", "--quiet").code == 0
    point, _ = checkpoint.newest(Path("done/checkpoints"))
    checkpoint.save(Path("done/checkpoints"), replace(point, device="cuda"))  # as if it had trained there
    done = fedrecall("resume", "done", "rounds=4")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "the run trained on cuda and would go on with cpu" in done.err
    assert "--other-device" in done.err
    assert fedrecall("resume", "done", "rounds=4", "--other-device", "--quiet").code == 0
    summary = json.loads(Path("done/summary.json").read_text())
    assert "trained on cuda until round 3 and on cpu from there on: the bits are others" in summary["warnings"]
    assert fedrecall("resume", "done", "rounds=5", "--quiet").code == 0  # from a checkpoint of the CPU


def test_a_run_that_is_no_run_is_refused(fedrecall, place) -> None:
    Path("nothing").mkdir()
    done = fedrecall("resume", "nothing")
    assert (done.code, done.out) == (2, "")
    assert "is not a run's folder" in done.err


def test_an_unfinished_run_is_offered_to_be_resumed(fedrecall, place, monkeypatch) -> None:
    write()
    stop_after(fedrecall, monkeypatch, 2, "run", "recipe.yaml", "--out", "stopped")
    done = fedrecall("run", "recipe.yaml", "--out", "stopped")
    assert done.code == 2
    assert "fedrecall resume stopped" in done.err


def test_a_second_process_is_kept_out_and_a_dead_one_is_not_waited_for(fedrecall, place) -> None:
    write()
    assert fedrecall("run", "recipe.yaml", "rounds=3", "--out", "done", "--quiet").code == 0
    holder = RunFolder(Path("done"))
    holder.lock()
    done = fedrecall("resume", "done", "rounds=4")
    assert done.code == 2
    assert "another process is at work" in done.err
    holder.close()
    script = "import os, signal; from pathlib import Path; from fedrecall.runs.folder import RunFolder\n"
    script += "RunFolder(Path('done')).lock(); os.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert fedrecall("resume", "done", "rounds=4", "--quiet").code == 0


@pytest.mark.parametrize("kind", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_polite_signal_saves_first_and_says_how_to_go_on(kind, fedrecall, place) -> None:
    write(rounds=100_000, checkpoint={"seconds": 1000})
    words = ["run", "recipe.yaml", "--out", "stopped", "--quiet"]
    process = subprocess.Popen([sys.executable, "-m", "fedrecall.cli.main", *words], stderr=subprocess.PIPE, text=True)
    metrics = Path("stopped/metrics.jsonl")
    while not metrics.exists() or metrics.read_text().count("\n") < 3:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(kind)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    done = len(metrics.read_text().splitlines())
    assert error.splitlines()[-1] == f"fedrecall: stopped after round {done}; go on with: fedrecall resume stopped"
    assert checkpoint.newest(Path("stopped/checkpoints"))[0].round == done


def rounds_of_killed() -> int:
    metrics = Path("killed/metrics.jsonl")
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def wait_for_an_instant(instants: random.Random, process: subprocess.Popen) -> None:
    """Somewhere in one of the next rounds, or at once, which is while something starts."""
    until = time.monotonic() + instants.uniform(0, 60)
    wanted = rounds_of_killed() + instants.choice([-100, 0, 1, 2, 3, 4])
    while process.poll() is None and rounds_of_killed() <= wanted and time.monotonic() < until:
        time.sleep(0.005)
    time.sleep(instants.uniform(0, 0.2))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedadam"])
def test_sigkill_at_random_instants_changes_nothing(algorithm, fedrecall, place) -> None:
    write(algorithm=algorithm, rounds=40, checkpoint={"every": 2}, forgetting={"every": 10})
    assert fedrecall("run", "recipe.yaml", "--out", "whole", "--quiet").code == 0
    instants, words = random.Random(0), ["run", "recipe.yaml", "--out", "killed", "--quiet"]
    for _ in range(20):
        process = subprocess.Popen([sys.executable, "-m", "fedrecall.cli.main", *words], stderr=subprocess.DEVNULL)
        wait_for_an_instant(instants, process)
        process.kill()
        process.wait()
        if Path("killed/recipe.yaml").exists():
            words = ["resume", "killed", "--quiet"]
        elif Path("killed").exists():
            shutil.rmtree("killed")
    if not Path("killed/summary.json").exists():
        assert fedrecall(*words).code == 0
    assert files("killed") == files("whole")
    assert not checkpoint.newest(Path("killed/checkpoints"))[1]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedadam"])
def test_workers_killed_at_random_instants_change_nothing(algorithm, fedrecall, place, workers_of) -> None:
    write(algorithm=algorithm, rounds=450, checkpoint={"every": 2}, forgetting={"every": 50})
    assert fedrecall("run", "recipe.yaml", "--out", "whole", "--quiet").code == 0
    instants, words = random.Random(0), ["run", "recipe.yaml", "--out", "killed"]
    kills, done = 0, False
    while not done:
        command = [sys.executable, "-m", "fedrecall.cli.main", *words, "--engine", "processes", "--workers", "2"]
        process = subprocess.Popen([*command, "--quiet"], stderr=subprocess.PIPE, text=True)
        try:
            while kills < 20 and process.poll() is None:
                wait_for_an_instant(instants, process)
                workers = workers_of(process.pid)
                if workers:
                    os.kill(instants.choice(workers), signal.SIGKILL)
                    kills += 1
            _, error = process.communicate(timeout=600)
        finally:
            process.kill()
        # By chance, the same client may be hit three times; then the run says so, and goes on when asked to.
        done = process.returncode == 0
        assert done or "ended its worker process 3 times" in error or "ended before they began" in error, error
        words = ["resume", "killed"]
    assert kills == 20
    assert files("killed") == files("whole")


def test_a_lengthened_run_is_one_of_that_length_field_by_field(fedrecall, place) -> None:
    write(rounds=6, evaluation={"every": 4, "test_last": 3})
    assert fedrecall("run", "recipe.yaml", "--out", "short", "--quiet").code == 0
    assert fedrecall("resume", "short", "rounds=10", "--quiet").code == 0
    assert fedrecall("run", "recipe.yaml", "rounds=10", "--out", "whole", "--quiet").code == 0
    made = [json.loads(Path(name, "summary.json").read_text()) for name in ("short", "whole")]
    for summary in made:
        del summary["seconds"], summary["sha256"]
    assert made[0] == made[1]
    assert files("short") == files("whole")


def test_a_lengthened_run_that_is_stopped_is_not_finished(fedrecall, place, monkeypatch) -> None:
    write(rounds=4)
    assert fedrecall("run", "recipe.yaml", "--out", "short", "--quiet").code == 0
    left = Path("short/summary.json")
    assert json.loads(left.read_text())["status"] == "finished"

    def killed(self, round) -> None:  # as by SIGKILL: nothing is written any more
        assert not Path("short/summary.json").exists()

    monkeypatch.setattr("fedrecall.simulation.progress.ProgressLine.after", killed)
    assert fedrecall("resume", "short", "rounds=6").code == 0
    assert json.loads(left.read_text())["status"] == "finished"


def test_warnings_and_dropped_updates_survive_a_resume(fedrecall, place, monkeypatch) -> None:
    Path("bad.py").write_text(BAD)
    write(rounds=8, algorithm="bad:Bad", clients_per_round=3)
    assert fedrecall("run", "recipe.yaml", "--out", "whole", "--quiet").code == 0
    stop_after(fedrecall, monkeypatch, 5, "run", "recipe.yaml", "--out", "stopped")
    assert fedrecall("resume", "stopped", "--quiet").code == 0
    made = [json.loads(Path(name, "summary.json").read_text()) for name in ("stopped", "whole")]
    assert made[1]["dropped_updates"] > 0
    for key in ("dropped_updates", "warnings"):
        assert made[0][key] == made[1][key]


BAD = """
from dataclasses import dataclass
from torch import zeros
from fedrecall import FedAvg


@dataclass(frozen=True)
class Bad(FedAvg):
    '''Who takes part for the first time in round 2 or 3 sends no numbers.'''

    def init(self, x):
        return {"w": x, "t": zeros(1)}

    def init_client(self, x):
        return {"n": zeros(1)}

    def broadcast(self, server):
        return server

    def finish(self, y, server, client, local, extra):
        bad = int(server["t"]) in (1, 2) and int(client["n"]) == 0
        return {"w": y * float("nan") if bad else y}, {"n": client["n"] + 1}

    def aggregate(self, server, sums, totals, population):
        return {"w": sums["w"] / totals["w"], "t": server["t"] + 1}
"""


def test_a_run_from_before_a_key_was_there_goes_on(fedrecall, place) -> None:
    write(rounds=6)
    assert fedrecall("run", "recipe.yaml", "--out", "whole", "--quiet").code == 0
    assert fedrecall("run", "recipe.yaml", "rounds=3", "--out", "older", "--quiet").code == 0
    saved = Path("older/checkpoints/round-000003.json")
    point, recipe = json.loads(saved.read_text()), yaml.safe_load(Path("older/recipe.yaml").read_text())
    for tree in (point["recipe"], recipe):
        assert tree["local"].pop("beta_from") == "train"
        assert tree["local"].pop("optimiser") == {"name": "sgd", "state": "reset"}
        assert tree.pop("updates") == tree.pop("trackers") == []
        assert tree["evaluation"].pop("prior") == "as_trained"
        assert tree["objective"].pop("prior") == "uniform"
    without_it = {key: value for key, value in point["recipe"].items() if key not in ("execution", "checkpoint")}
    digest = hashlib.sha256(json.dumps(without_it, sort_keys=True).encode()).hexdigest()
    assert point["recipe_sha256"] == digest  # as it was when the key was not there
    del point["note_sha256"]
    own = hashlib.sha256(json.dumps(point, sort_keys=True).encode()).hexdigest()
    saved.write_text(json.dumps({**point, "note_sha256": own}))
    Path("older/recipe.yaml").write_text(yaml.safe_dump(recipe))
    done = fedrecall("resume", "older", "rounds=6", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert Path("older/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
