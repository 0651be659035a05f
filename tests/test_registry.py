"""Algorithms and objectives by name: those that are listed, and those of the user's own."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

import fedrecall as package
import fedrecall.algorithms
import fedrecall.objectives
from fedrecall import Algorithm, FedAvg, Objective
from fedrecall.algorithms import ALGORITHMS
from fedrecall.objectives import OBJECTIVES
from fedrecall.registry import import_named

MINE = '''
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
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
    @property
    def needs(self):
        return frozenset({"teacher"})

    def __call__(self, logits, target, client, teacher=None):
        assert teacher is not None
        return CrossEntropy()(logits, target, {})
'''

SMALL = [
    "rounds=1", "model=mlp", "model.hidden=[8]", "local.steps=2", "evaluation.test_last=1", "forgetting.every=0",
    "partition.clients=10", "clients_per_round=3", "local.lr=0.1", "local.step=exact", "--quiet",
    "--engine", "serial",
]  # fmt: skip


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A module of the user's own in the folder where the command is typed."""
    name = f"mine_{abs(hash(request.node.name))}"
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


def test_an_objective_of_the_users_own_with_an_option(fedrecall, mine) -> None:
    run(fedrecall, "usual", "objective=cross_entropy", "local.lr=0")
    run(fedrecall, "louder", f"objective={mine}:Louder", "objective.factor=3", "objective.offset=2", "local.lr=0")
    assert losses("louder") == pytest.approx([3 * loss + 2 for loss in losses("usual")], rel=1e-6)


def test_an_objective_of_the_users_own_may_ask_for_a_teacher(fedrecall, mine) -> None:
    taught = run(fedrecall, "taught", f"objective={mine}:Taught")
    usual = run(fedrecall, "usual", "objective=cross_entropy")
    assert all(torch.equal(taught[name], usual[name]) for name in usual)


def test_both_in_a_recipe_file_and_again_from_the_runs_own_recipe(fedrecall, mine) -> None:
    Path("my.yaml").write_text(
        f"data: fashion_mini\nalgorithm: {{name: '{mine}:Partway', share: 0.25}}\n"
        f"objective: {{name: '{mine}:Louder', factor: 2}}\n"
    )
    words = [word for word in SMALL if not word.startswith("partition")]
    assert fedrecall("run", "my.yaml", *words, "partition.clients=10", "--out", "first").code == 0
    assert fedrecall("run", "first/recipe.yaml", "--quiet", "--out", "second").code == 0
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


REFUSED = [
    (["algorithm={mine}:Partway", "algorithm.shar=0.5"], "'algorithm.shar'; did you mean 'share'?"),
    (["algorithm={mine}:Partway", "algorithm.share=2"], "algorithm.share is 2;"),
    (["algorithm={mine}:Partway", "algorithm.share=much"], "algorithm.share is 'much';"),
    (["algorithm={mine}:Patway"], "has no such function; did you mean 'Partway'?"),
    (["algorithm=no_such_module:Partway"], "no module 'no_such_module'"),
    (["objective={mine}:Louder", "objective.facto=2"], "'objective.facto'; did you mean 'factor'?"),
    (["objective={mine}:Louder", "objective.offset=x"], "objective.offset is 'x';"),
    (["objective={mine}:Taught", "algorithm=local_only"], "learns from the global model"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_is_wrong_with_the_users_own_parts_is_said_in_a_sentence(fedrecall, mine, words, said) -> None:
    finished = fedrecall("run", "demo", *SMALL, *(word.format(mine=mine) for word in words), "--out", "run")
    assert finished.code == 2
    assert said in finished.err
    assert len(finished.err.splitlines()) == 1
    assert not Path("run").exists()


# --- the lists ---

LISTS = [(ALGORITHMS, Algorithm, fedrecall.algorithms), (OBJECTIVES, Objective, fedrecall.objectives)]


@pytest.mark.parametrize(("listing", "base", "module"), LISTS)
def test_the_package_exports_what_is_listed_and_nothing_else_of_the_kind(listing, base, module) -> None:
    exported = [getattr(package, name) for name in package.__all__]
    kinds = {thing for thing in exported if isinstance(thing, type) and issubclass(thing, base)} - {base}
    assert kinds == set(listing.values())
    assert {kind.__name__ for kind in kinds} < set(module.__all__)
    assert len(set(listing.values())) == len(listing)


@pytest.mark.parametrize(("listing", "base", "module"), LISTS)
def test_a_list_is_a_plain_dictionary_that_nothing_enters_by_itself(listing, base, module) -> None:
    before = dict(listing)

    class Fedunlisted(base):
        pass

    assert type(listing) is dict
    assert listing == before


@pytest.mark.parametrize(("listing", "base", "module"), LISTS)
def test_every_finished_class_of_the_folder_is_listed(listing, base, module) -> None:
    """A class is finished if it can be used as it is: the shared parts of others are not."""
    found = set()
    for info in pkgutil.iter_modules(module.__path__):
        inner = importlib.import_module(f"{module.__name__}.{info.name}")
        found |= {
            thing
            for thing in vars(inner).values()
            if isinstance(thing, type) and issubclass(thing, base) and thing.__module__ == inner.__name__
        }
    assert {kind.__name__ for kind in found - set(listing.values())} <= {
        base.__name__, "Adaptive", "WithMomentum", "LossFunction",
    }  # fmt: skip
    assert set(listing.values()) <= found


@pytest.mark.parametrize("kind", [*ALGORITHMS.values(), *OBJECTIVES.values()])
def test_each_is_a_frozen_data_class_that_works_without_options_and_says_what_it_is(kind) -> None:
    made = kind()
    assert made == kind()
    assert hash(made) == hash(kind())
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}(")  # which is what a data class without a docstring has
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.anything = 1


def test_importing_the_lists_changes_nothing_elsewhere(tmp_path) -> None:
    script = """
import os, random, signal, sys, threading, warnings
import numpy, torch

def world():
    return (
        torch.random.get_rng_state().tolist(), random.getstate(), repr(numpy.random.get_state()),
        torch.get_num_threads(), torch.get_default_dtype(), threading.active_count(), os.listdir("."),
        dict(os.environ), signal.getsignal(signal.SIGINT), list(sys.path), list(warnings.filters),
    )

import pydantic  # which adds to the filters of warnings
before = world()
import fedrecall.algorithms, fedrecall.objectives
assert world() == before
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_algorithm_without_options_of_its_own_is_one_line() -> None:
    class Mine(FedAvg):
        pass

    assert Mine().weight("w", 7, 3) == 7.0


def test_the_working_folder_comes_after_libraries_and_before_earlier_ones(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", ["/library"])
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "found_here.py").write_text(f"def {name}():\n    pass\n")
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.delitem(sys.modules, "found_here", raising=False)
        assert import_named("model", f"found_here:{name}").__name__ == name
    assert sys.path == ["/library", str(tmp_path / "second"), str(tmp_path / "first")]


@pytest.mark.parametrize("name", ["os:system", "subprocess:run", "builtins:exec", "os.path:join"])
def test_nothing_of_pythons_own_is_called(name: str, fedrecall, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = fedrecall("run", "demo", f"model={name}", "model.command=touch harmed")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"model is '{name}', which is Python's own; a class or function of yours was expected" in done.err
    assert not (tmp_path / "harmed").exists()


def test_a_function_that_a_module_only_imports_is_refused(fedrecall, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "passes_on.py").write_text("from os import system\nfrom torch.nn.functional import relu\n")
    for name, words in {
        "passes_on:system": "'system' is not defined in 'passes_on'; name it where it is defined",
        "passes_on:relu": "'relu' is not defined in 'passes_on'; 'torch.nn.functional:relu' was expected",
    }.items():
        done = fedrecall("run", "demo", f"model={name}", "model.command=touch harmed")
        assert done.code == 2
        assert words in done.err
    assert not (tmp_path / "harmed").exists()
