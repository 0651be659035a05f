"""Code of the user's that raises: their traceback once, where it was, and how to see it again; the run is kept."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from fedrecall.runs import checkpoint

# What fails does so once the run has a round and nobody has mended it: in round 2.
MINE = """
from pathlib import Path
from torch import nn
from fedrecall import FedAvg

def broken():
    return Path("run/metrics.jsonl").exists() and not Path("mended").exists()

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.linear = nn.Linear(784, num_classes)

    def forward(self, x):
        if self.training and broken():
            raise ZeroDivisionError("of my model")
        return self.linear(x.flatten(1))

class BlindNet(Net):
    def forward(self, x):
        if not self.training and broken():
            raise ZeroDivisionError("of my evaluation")
        return self.linear(x.flatten(1))

class Mean(FedAvg):
    def aggregate(self, server, sums, totals, population):
        if broken():
            raise ZeroDivisionError("of my algorithm")
        return super().aggregate(server, sums, totals, population)

def net(num_classes):
    return Net(num_classes)

def blind_net(num_classes):
    return BlindNet(num_classes)

def metric(logits, labels):
    if broken():
        raise ZeroDivisionError("of my metric")
    return 1.0

def no_net():
    raise ZeroDivisionError("of my function")
"""
RECIPE = {
    "data": "fashion_mini",
    "partition": {"name": "iid", "clients": 4},
    "model": "mine:net",
    "rounds": 3,
    "clients_per_round": 2,
    "local": {"steps": 2, "batch_size": 8, "lr": 0.05},
    "evaluation": {"every": 1, "test_last": 0},
    "execution": {"engine": "serial"},
}


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.py").write_text(MINE)
    for module in ("mine", "bad_import", "bad_data"):
        monkeypatch.delitem(sys.modules, module, raising=False)


def write(**settings: object) -> None:
    Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, **settings}))


def contents(folder: str) -> dict[str, tuple[bytes, int]]:
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def check_shown_once(error: str, last_line: str) -> None:
    """One traceback, with lines of theirs and none of ours."""
    assert error.count("Traceback (most recent call last)") == 1
    assert error.count(last_line) == 1
    files = re.findall(r'File "([^"]+)"', error)
    assert {Path(file).name for file in files} == {"mine.py"}


@pytest.mark.parametrize("engine", ["serial", "processes"])
@pytest.mark.usefixtures("warm_workers")
def test_a_client_that_fails_can_be_replayed_mended_and_resumed(engine, fedrecall) -> None:
    write()
    Path("mended").touch()
    assert fedrecall("run", "recipe.yaml", "--out", "whole", "--quiet").code == 0
    Path("mended").unlink()
    done = fedrecall("run", "recipe.yaml", "--out", "run", "--quiet", "--engine", engine, "--workers", 1)
    assert done.code == 1
    check_shown_once(done.err, "ZeroDivisionError: of my model")
    client = re.search(r"client (\d) in round 2", done.err)[1]
    command = f"fedrecall replay run --round 2 --client {client}"
    assert f"    {command}\n" in done.err
    assert json.loads(Path("run/summary.json").read_text())["status"] == "failed"
    assert checkpoint.newest(Path("run/checkpoints"))[0].round == 1

    before = contents("run")
    again = fedrecall(*shlex.split(command)[1:])
    assert again.code == 1
    check_shown_once(again.err, "ZeroDivisionError: of my model")
    Path("mended").touch()
    again = fedrecall(*shlex.split(command)[1:])
    assert again.code == 0, again.err
    assert re.fullmatch(rf"client {client} in round 2: loss -?\d\.\d+, 2 steps, update norm \d\.\d+\n", again.out)
    assert contents("run") == before

    assert fedrecall("resume", "run", "--quiet", "--engine", "serial").code == 0
    for name in ("model.safetensors", "metrics.jsonl"):
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes()


@pytest.mark.parametrize(
    ("settings", "what", "where"),
    [
        ({"algorithm": "mine:Mean"}, "of my algorithm", "Where: the main process, in round 2."),
        ({"evaluation": {"every": 1, "metrics": "mine:metric"}}, "of my metric", "in the metric 'metric', on the"),
        ({"model": "mine:blind_net"}, "of my evaluation", "Where: evaluation on validation data in round 2."),
    ],
)
def test_what_is_no_clients_own_is_shown_with_its_round(settings, what, where, fedrecall) -> None:
    write(**{"model": {"name": "mlp", "hidden": [4]}, **settings})
    done = fedrecall("run", "recipe.yaml", "--out", "run", "--quiet")
    assert done.code == 1
    check_shown_once(done.err, f"ZeroDivisionError: {what}")
    assert where in done.err
    assert "    fedrecall resume run\n" in done.err
    assert "replay" not in done.err
    assert checkpoint.newest(Path("run/checkpoints"))[0].round == 1


@pytest.mark.usefixtures("warm_workers")
def test_evaluation_that_fails_in_a_worker_comes_with_the_way_to_the_main_process(fedrecall) -> None:
    write(model="mine:blind_net", execution={"engine": "processes", "workers": 1, "client_timeout": 100})
    done = fedrecall("run", "recipe.yaml", "--out", "run", "--quiet")
    assert done.code == 1
    check_shown_once(done.err, "ZeroDivisionError: of my evaluation")
    command = re.search(r"fedrecall (resume run --engine serial .*)\n", done.err)[1]
    Path("mended").touch()
    assert fedrecall(*shlex.split(command), "--quiet").code == 0


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("data", "def thing(folder):\n    raise ValueError('of mine')\n"),
        ("model", "def thing(sample_shape):\n    raise ValueError('of mine')\n"),
        (
            "algorithm",
            "from fedrecall import FedAvg\nclass thing(FedAvg):\n"
            "    def __init__(self):\n        raise ValueError('of mine')\n",
        ),
        ("partition", "def thing(labels, num_classes, rng):\n    raise ValueError('of mine')\n"),
        ("objective", "raise ValueError('of mine')\n"),
        ("model", "import no_such_library\n"),
        ("model", "def thing(:\n"),
    ],
)
def test_what_fails_before_the_first_round_names_its_key_and_leaves_nothing(key, code, fedrecall) -> None:
    Path("mine.py").write_text(code)
    write(**{"model": {"name": "mlp", "hidden": [4]}, key: "mine:thing"})
    done = fedrecall("run", "recipe.yaml", "--out", "run")
    assert done.code == 1
    assert done.err.count("Error: ") == 1
    assert 'mine.py", line ' in done.err
    assert done.err.endswith(f"(the recipe's key {key!r} names it: 'mine:thing')\n")
    assert not Path("run").exists()


def test_a_model_that_does_not_take_the_samples_is_one_sentence(fedrecall) -> None:
    Path("mine.py").write_text("from torch import nn\n\ndef net():\n    return nn.Linear(3, 10)\n")
    write()
    done = fedrecall("run", "recipe.yaml", "--out", "run")
    assert done.code == 2
    assert "the model fails on two samples, of shape (2, 1, 28, 28): RuntimeError: mat1 and mat2" in done.err
    assert not Path("run").exists()
