"""One client of a round again: the numbers that the run had, and nothing in its folder is changed."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from torch import nn

from fedrecall import Federation, Iid, federate

RECIPE = {
    "data": "fashion_mini",
    "partition": {"name": "dirichlet", "clients": 3, "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [4]},
    "algorithm": "scaffold",
    "rounds": 6,
    "clients_per_round": 1,
    "local": {"steps": 2, "batch_size": 8, "lr": 0.05, "schedule": "cosine"},
    "evaluation": {"every": 1, "test_last": 0},
    "forgetting": {"every": 3},
    "checkpoint": {"every": 3},
}

STOPS = """
from fedrecall import FedAvg

class Stops(FedAvg):
    def correct(self, g, y, server, client):
        breakpoint()
"""


@pytest.fixture
def run(fedrecall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """A finished run in the folder `run`; its lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    Path("tmp").mkdir()
    Path("recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    done = fedrecall("run", "recipe.yaml", "--out", "run", "--quiet", "--engine", "serial")
    assert done.code == 0, done.err
    return [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


# Of the beginning, the one right before (of a probed round too), and earlier ones with client state.
@pytest.mark.parametrize("round_", [1, 2, 4, 6])
def test_a_client_alone_has_the_numbers_of_its_round(round_, run, fedrecall) -> None:
    line = run[round_ - 1]
    (client,) = line["clients"]  # alone in its round: the round's means are its own
    before = state(Path("run"))
    done = fedrecall("replay", "run", "--round", round_, "--client", client, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {
        "round": round_,
        "client": client,
        "loss": pytest.approx(line["train_loss"], rel=1e-12),
        "steps": 2,
        "update_norm": line["update_norm"],
    }
    assert state(Path("run")) == before
    assert list(Path("tmp").glob("fedrecall-replay-*")) == []


def test_breakpoint_works_in_it(run, fedrecall, monkeypatch) -> None:
    Path("stops.py").write_text(STOPS)
    recipe = yaml.safe_load(Path("run/recipe.yaml").read_text())
    Path("run/recipe.yaml").write_text(yaml.safe_dump({**recipe, "algorithm": "stops:Stops"}))
    stops = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stops.append(1))
    (client,) = run[0]["clients"]
    refused = fedrecall("replay", "run", "--round", 1, "--client", client, "--trust")
    assert (refused.code, stops) == (2, [])
    assert "the recipe is not the run's: algorithm.name was 'scaffold' and is 'stops:Stops'" in refused.err
    assert fedrecall("replay", "run", "--round", 1, "--client", client, "--trust", "--force").code == 0
    assert stops == [1, 1]  # two steps


def test_what_cannot_be_replayed_is_said_in_a_sentence(run, fedrecall) -> None:
    (client,) = run[0]["clients"]
    for words, sentence in [
        (["tmp", "--round", 1, "--client", 0], "is not a run's folder"),
        (["run", "--round", 0, "--client", 0], "the round is 0; one from 1 to 6 was expected"),
        (["run", "--round", 7, "--client", 0], "the round is 7; one from 1 to 6 was expected"),
        (["run", "--round", 1, "--client", 9], f"client 9 does not train in round 1; these do: {client}"),
        (["run", "--round", 1], "--client"),
    ]:
        done = fedrecall("replay", *words)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert sentence in done.err


def test_a_run_from_python_is_refused(fedrecall, tmp_path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40) % 2
    federation = Federation.from_arrays(x, y, partition=Iid(clients=4, validation=0.2))
    federate(nn.Linear(3, 2), federation, rounds=1, out=tmp_path / "run")
    done = fedrecall("replay", tmp_path / "run", "--round", 1, "--client", 0)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "data was given as a Python object; start this run again from Python" in done.err


def test_the_rounds_that_are_played_first_are_shown(run, fedrecall) -> None:
    words = ["replay", "run", "--round", 3, "--client", run[2]["clients"][0]]
    for path in Path("run/checkpoints").iterdir():
        path.unlink()
    done = fedrecall(*words)
    assert done.code == 0
    shown = [line.split("  ")[:2] for line in done.err.splitlines()]
    assert shown == [["the rounds before", "round 1/2"], ["the rounds before", "round 2/2"]]
    for quiet in ("--quiet", "--json"):
        assert fedrecall(*words, quiet).err == ""
