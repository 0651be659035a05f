"""Which runs are the same: the result, the rounds, and the method."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from fedrecall.errors import InputError
from fedrecall.recipe.display_titles import titles
from fedrecall.recipe.layers import load_recipe
from fedrecall.report.comparison import group_methods
from fedrecall.runs.identity import identity, round_identity, tells_methods_apart
from fedrecall.runs.reader import load_run as load_run


def demo(*words: str) -> dict:
    return load_recipe("demo", words).tree()


@pytest.mark.parametrize("word", ["execution.engine=serial", "checkpoint.every=3"])
def test_where_a_run_is_executed_and_saved_does_not_count(word: str) -> None:
    assert identity(demo(word)) == identity(demo())


@pytest.mark.parametrize("word", ["seed=1", "forgetting.every=3", "rounds=7", "local.beta_from=train+validation"])
def test_everything_else_counts(word: str) -> None:
    assert identity(demo(word)) != identity(demo())


def test_the_number_of_rounds_decides_no_round() -> None:
    assert round_identity(demo("rounds=7")) == round_identity(demo())


def test_recipes_of_before_a_key_existed_are_those_with_what_it_then_was() -> None:
    old = demo()
    del old["local"]["beta_from"], old["evaluation"]["prior"], old["objective"]["prior"]
    assert identity(old) == identity(demo())


@pytest.mark.parametrize(
    ("key", "apart"),
    [
        ("local.lr", True),
        ("evaluation.prior", True),
        ("seeds", True),
        ("seed", False),
        ("partition.seed", False),
        ("execution.engine", False),
        ("forgetting.every", False),
    ],
)
def test_methods_differ_in_more_than_seeds_and_measurements(key: str, apart: bool) -> None:
    assert tells_methods_apart(key) == apart


def test_an_old_run_and_a_new_one_are_of_one_method(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    old, new = make_run(tmp_path / "old"), make_run(tmp_path / "new", seed=1, local={"beta_from": "train"})
    other = make_run(tmp_path / "other", local={"beta_from": "train+validation"})
    methods = group_methods([load_run(path) for path in (old, new, other)], titles())
    assert [len(method.runs) for method in methods] == [2, 1]


def test_a_run_that_is_being_lengthened_can_be_read(fedrecall, tmp_path: Path) -> None:
    """The recipe of the longer run is written before its first checkpoint, and more of its rounds are tested."""
    words = ("model=mlp", "rounds=1", "forgetting.every=0", "local.steps=1", "checkpoint.every=1")
    done = fedrecall("run", "demo", *words, "evaluation.test_last=null", "--out", tmp_path / "run", "--quiet")
    assert done.code == 0
    path = tmp_path / "run" / "recipe.yaml"
    recipe = yaml.safe_load(path.read_text())
    assert "test_last" not in recipe["evaluation"]
    recipe["evaluation"]["test_last"] = 100
    path.write_text(yaml.safe_dump({**recipe, "rounds": 2000}))
    assert load_run(tmp_path / "run").rounds_done == 1
    path.write_text(yaml.safe_dump({**recipe, "rounds": 2000, "seed": 5}))
    with pytest.raises(InputError, match="is not the recipe of the run"):
        load_run(tmp_path / "run")


def test_the_digest_is_that_of_the_sorted_identity() -> None:

    text = json.dumps(identity(demo()), sort_keys=True).encode()
    assert load_recipe("demo").digest() == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("word", ["local.optimiser.state=reset", "local.optimiser={name: sgd}"])
def test_moments_that_start_anew_are_those_of_before_they_could_be_kept(word: str) -> None:
    old = demo()
    old["local"]["optimiser"] = {"name": "sgd"}
    assert identity(demo(word)) == identity(old)
    assert identity(demo("local.optimiser=adam", "local.optimiser.state=keep")) != identity(
        demo("local.optimiser=adam")
    )
