"""How long a study will take, from rounds that were timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrecall.api.execute import load_federation
from fedrecall.recipe.layers import load_recipe
from fedrecall.studies.cells import PlannedRun, RunSlot
from fedrecall.studies.estimate import Cost, kind_of, planned_seconds_left, samples_judged
from fedrecall.studies.folder import State


def test_what_is_left_is_shared_by_the_runs_at_once() -> None:
    first, second, third = (PlannedRun(RunSlot("all", seed), load_recipe("demo", ["rounds=20"])) for seed in range(3))
    states = {first.slot: State("begun", rounds=15), second.slot: State("waiting"), third.slot: State("waiting")}
    known = {run: Cost(seconds=40.0, bytes=0) for run in (first, second, third)}
    assert planned_seconds_left(known, states, jobs=1) == 10 + 40 + 40
    assert planned_seconds_left(known, states, jobs=2) == 45
    assert planned_seconds_left(known, states, jobs=3) == 40  # no run is shared
    assert planned_seconds_left({}, states, jobs=2) == 0


def test_samples_are_judged_as_often_as_the_recipe_says() -> None:
    words = ["rounds=20", "evaluation.every=10", "evaluation.test_last=3", "forgetting.every=5"]
    recipe = load_recipe("demo", [*words, "partition.validation=0.1", "clients_per_round=2"])
    federation = load_federation(recipe)
    validation = 20 * 50  # 20 clients with 500 samples each, of which a tenth
    # 2 evaluations, and 4 probes of two clients' models and the global one before and after; 2000 test images
    assert samples_judged(recipe, federation, 2) == validation * (2 + 4 * 4) + 3 * 2000


def test_runs_that_take_equally_long_are_timed_once() -> None:
    plain = kind_of(load_recipe("demo"))
    assert (
        kind_of(load_recipe("demo", ["seed=3", "partition.seed=3", "local.lr=0.5", "objective=cross_entropy"])) == plain
    )
    for word in ("objective=fedntd", "local.epochs=1", "model=mlp", "rounds=7", "clients_per_round=3"):
        assert kind_of(load_recipe("demo", [word])) != plain


@pytest.mark.slow
def test_the_command_says_how_long_and_leaves_nothing(fedrecall, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = fedrecall("sweep", "demo", "model=mlp", "local.steps=2", "objective=wsm,mask", "--dry-run", "--time")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1].startswith("about ")
    assert list(tmp_path.iterdir()) == []
    assert fedrecall("sweep", "demo", "--time").code == 2
