"""Algorithms, objectives, partitions and models of the user's own, named in a recipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

MINE = '''
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import nn
from torch.nn import functional as F
from fedrecall import CrossEntropy, FedAvg, Objective


@dataclass(frozen=True)
class Partway(FedAvg):
    """Goes a share of the way to the mean."""

    share: Annotated[float, Field(ge=0, le=1), "how far"] = 1.0

    def aggregate(self, server, sums, totals, population):
        x = server["w"].double()
        return {"w": x + self.share * (sums["w"] / totals["w"] - x)}


class Louder(Objective):
    """Cross-entropy times a factor; no data class, and `prepare` as it is."""

    def __init__(self, factor: float = 1.0, *, offset: float = 0.0) -> None:
        self.factor, self.offset = factor, offset

    def __call__(self, logits, target, client, teacher=None):
        assert set(client) == {"beta", "counts"} and client["counts"].sum() > 0 and teacher is None
        return self.factor * CrossEntropy()(logits, target, {}) + self.offset


class Taught(Objective):
    needs = frozenset({"teacher"})

    def __call__(self, logits, target, client, teacher=None):
        assert teacher is not None
        return CrossEntropy()(logits, target, {})


class Three(Objective):
    def __call__(self, logits, target, client):
        return F.cross_entropy(logits, target)


class Loss:
    def __call__(self, logits, target, factor: float = 1.0):
        return factor * F.cross_entropy(logits, target)


def smooth(logits, target, smoothing: float = 0.0):
    return F.cross_entropy(logits, target, label_smoothing=smoothing)


def makes_louder(gamma: float = 1.0):
    return Louder()


def many(logits, target):
    return F.cross_entropy(logits, target, reduction="none")


instance, of_torch, louder, three = Loss(), nn.CrossEntropyLoss(), Louder(), Three()
'''

SMALL = [
    "rounds=1", "model=mlp", "model.hidden=[8]", "local.steps=2", "evaluation.test_last=1", "forgetting.every=0",
    "partition.clients=10", "clients_per_round=3", "local.lr=0.1", "local.step=exact", "--quiet",
    "--engine", "serial",
]  # fmt: skip


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own in the folder where the command is typed."""
    name = f"mine_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def run(fedrecall, out: str, *words: str) -> dict[str, torch.Tensor]:
    finished = fedrecall("run", "demo", *SMALL, *words, "--out", out)
    assert finished.code == 0, finished.err
    return load_file(Path(out) / "model.safetensors")


def losses(out: str) -> list[float]:
    return [json.loads(line)["train_loss"] for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]


def test_an_algorithm_of_the_users_own_with_an_option(fedrecall, mine) -> None:
    none, half, full = (
        run(fedrecall, out, f"algorithm={mine}:Partway", f"algorithm.share={share}")
        for out, share in (("none", 0), ("half", 0.5), ("full", 1))
    )
    usual = run(fedrecall, "usual", "algorithm=fedavg")
    still = run(fedrecall, "still", "algorithm=fedavg", "local.lr=0")
    for name in usual:
        assert torch.equal(none[name], still[name])
        torch.testing.assert_close(full[name], usual[name], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(half[name], (usual[name] + still[name]) / 2, rtol=1e-5, atol=1e-6)
    assert not torch.equal(none[name], full[name])
    recipe = yaml.safe_load(Path("half/recipe.yaml").read_text())
    assert recipe["algorithm"] == {"name": f"{mine}:Partway", "share": 0.5}


def test_an_objective_of_the_users_own_may_be_a_class_a_function_an_object_or_what_makes_one(fedrecall, mine) -> None:
    usual = run(fedrecall, "usual", "objective=cross_entropy")
    same = ["Taught", "smooth", "makes_louder objective.gamma=2", "instance objective.factor=1", "of_torch", "louder"]
    for words in same:
        out = words.partition(" ")[0]
        found = run(fedrecall, out, *f"objective={mine}:{words}".split())
        assert losses(out) == losses("usual")
        assert all(torch.equal(found[name], usual[name]) for name in usual)
    options = ["objective.factor=3", "objective.offset=2", "local.lr=0"]
    run(fedrecall, "still", "objective=cross_entropy", "local.lr=0")
    run(fedrecall, "optioned", f"objective={mine}:Louder", *options)
    assert losses("optioned") == pytest.approx([3 * loss + 2 for loss in losses("still")], rel=1e-6)
    run(fedrecall, "smoothed", f"objective={mine}:smooth", "objective.smoothing=0.5")
    assert losses("smoothed")[0] > losses("usual")[0]
    recipe = yaml.safe_load(Path("smoothed/recipe.yaml").read_text())
    assert recipe["objective"] == {"name": f"{mine}:smooth", "smoothing": 0.5}


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm={name: '{mine}:Partway', share: 0.25}", "objective={name: '{mine}:Louder', factor: 2}"],
        ["objective={name: '{mine}:smooth', smoothing: 0.5}"],
        ["objective=torch.nn:CrossEntropyLoss"],
    ],
)
def test_a_run_is_made_again_from_its_own_recipe(fedrecall, mine, words) -> None:
    lines = [word.replace("{mine}", mine).replace("=", ": ", 1) for word in words]
    Path("my.yaml").write_text("\n".join(["base: demo", *lines]))
    assert fedrecall("run", "my.yaml", *SMALL, "--out", "first").code == 0
    done = fedrecall("run", "first/recipe.yaml", "--quiet", "--out", "second")
    assert done.code == 0, done.err
    for name in ("recipe.yaml", "metrics.jsonl", "model.safetensors"):
        assert Path("first", name).read_bytes() == Path("second", name).read_bytes()


@pytest.mark.slow
def test_the_users_own_parts_have_the_same_bits_in_worker_processes(mine) -> None:
    """By the command itself, whose workers find the module as it did."""
    for out, engine in (("here", "serial"), ("there", "processes")):
        words = [f"algorithm={mine}:Partway", f"objective={mine}:Louder", "--out", out, "--engine", engine]
        command = [sys.executable, "-m", "fedrecall.cli.main", "run", "demo", *SMALL[:-2], *words]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert Path("here", name).read_bytes() == Path("there", name).read_bytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("algorithm={mine}:Partway algorithm.shar=0.5", "'algorithm.shar'; did you mean 'share'?"),
        ("algorithm={mine}:Partway algorithm.share=2", "algorithm.share is 2; expected at most 1.0"),
        ("algorithm={mine}:Partway algorithm.share=much", "algorithm.share is 'much'; expected a number"),
        ("algorithm={mine}:Patway", "has no such function; did you mean 'Partway'?"),
        ("algorithm={mine}:Louder", "algorithm is '{mine}:Louder', which is an objective; an Algorithm"),
        ("algorithm={mine}:louder", "algorithm is '{mine}:louder', which is an objective; an Algorithm"),
        ("algorithm={mine}:makes_louder", "which is an objective; an Algorithm or its name was expected"),
        ("objective=fedrecall:FedAvg", "objective is 'fedrecall:FedAvg', which is an algorithm; an Objective"),
        ("objective={mine}:smooth objective.smoothin=1", "'objective.smoothin'; did you mean 'smoothing'?"),
        ("objective={mine}:smooth objective.smoothing=x", "objective.smoothing is 'x'; expected a number"),
        ("objective={mine}:many", "objective is many, which returned a tensor of shape (2,);"),
        ("objective={mine}:Taught algorithm=local_only", "learns from the global model"),
        ("partition=fedrecall:WSM", "partition is 'fedrecall:WSM', which is an objective; a Partition"),
        ("partition={mine}:three", "partition is '{mine}:three', which is an objective; a Partition"),
        ("model={mine}:instance", "the key 'model.logits' is missing"),
    ],
)
def test_what_is_wrong_with_the_users_own_parts_is_one_sentence(fedrecall, mine, words, said) -> None:
    words = words.format(mine=mine).split()
    section = words[0].partition("=")[0]
    kept = [word for word in SMALL if not word.startswith(section) or section not in ("partition", "model")]
    done = fedrecall("run", "demo", *kept, *words, "--out", "run")
    assert done.code == 2
    assert said.format(mine=mine) in done.err
    assert len(done.err.splitlines()) == 1
    assert not Path("run").exists()
