"""How long a study will take, from rounds that were timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrecall.api.execute import load_federation
from fedrecall.recipe.layers import load_recipe
from fedrecall.studies import estimate
from fedrecall.studies.cells import PlannedRun, RunSlot, cells_of, plan
from fedrecall.studies.design import load_design
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


def test_a_run_costs_its_rounds_times_its_clients_times_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = estimate.TIMED_STEPS * 0.001  # a step of one client takes a millisecond
    monkeypatch.setattr(estimate, "seconds_of_round", lambda experiment: seconds)
    words = ["rounds=40", "local.steps=5", "model=mlp", "evaluation.every=40", "evaluation.test_last=1"]
    words.append("forgetting.every=0")
    costs = [estimate.cost_of(load_recipe("demo", [*words, f"clients_per_round={count}"])) for count in (1, 2, 10)]
    # 1000 validation and 2000 test samples in batches of 64, each at a third of a step.
    judged = 3000 / 64 * 0.001 / 3
    expected = [40 * count * 5 * 0.001 + judged for count in (1, 2, 10)]
    assert [cost.seconds for cost in costs] == pytest.approx(expected)


def test_clients_that_train_together_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []
    monkeypatch.setattr(estimate, "seconds_of_round", lambda experiment: timed.append(experiment.count) or 0.01)
    recipe = load_recipe("demo", ["model=mlp", "clients_per_round=8", "execution.engine=vectorised"])
    assert estimate.time_steps(recipe, load_federation(recipe))[1] == pytest.approx(0.01 / estimate.TIMED_STEPS / 8)
    assert timed == [8]


def test_what_is_timed_is_told_before_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(estimate, "cost_of", lambda recipe: told.append("timed") or Cost(1.0, 0.0))
    design = load_design("demo", {"model": ["mlp", "lenet"], "local.lr": [0.1, 0.2]})
    estimate.costs(plan(design, cells_of(design)), told.append)
    assert told == [
        "timing 1 of 2: model=mlp,local.lr=0.1", "timed", "timing 2 of 2: model=lenet,local.lr=0.1", "timed",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_command_says_how_long_and_leaves_nothing(fedrecall, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = fedrecall("sweep", "demo", "model=mlp", "local.steps=2", "objective=wsm,mask", "--dry-run", "--time")
    assert (done.code, done.err.splitlines()) == (0, ["timing 1 of 1: objective=wsm"])
    assert done.out.splitlines()[-1].startswith("about ")
    assert list(tmp_path.iterdir()) == []
    assert fedrecall("sweep", "demo", "--time").code == 2
