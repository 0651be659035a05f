"""The shipped recipes are the paper's settings; sizes and steps are worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

from fedrecall.client.batches import LocalPlan
from fedrecall.recipe.files import shipped_recipes
from fedrecall.recipe.layers import load_recipe
from fedrecall.recipe.recipe import Recipe

BASE = {
    "data": "cifar10", "model": "resnet18", "norm": "batch", "lr": 0.05, "clients": 100, "a_round": 10,
    "rounds": 4000,
}  # fmt: skip
PAPER = {  # what differs from the base case
    "resnet18-cifar10": {},
    "resnet18-cifar100": {"data": "cifar100", "a_round": 2},
    "resnet18-femnist": {"data": "femnist", "rounds": 3000},
    "lenet-cifar10": {"model": "lenet", "norm": None, "lr": 0.01},
    "lenet-cifar100": {"data": "cifar100", "model": "lenet", "norm": None, "lr": 0.01, "a_round": 2},
    "resnet18-30-clients": {"clients": 30, "a_round": 3, "rounds": 2000},
    "resnet18-30-clients-readme": {"clients": 30, "a_round": 3, "rounds": 2000, "norm": "group", "lr": 0.03},
    "resnet18-forgetting": {},
}


def said(recipe: Recipe) -> dict[str, Any]:
    return {
        "data": recipe.data["name"],
        "model": recipe.model["name"],
        "norm": recipe.model.get("norm"),
        "clients": recipe.partition["clients"],
        "a_round": recipe.create_participation().expected(recipe.partition["clients"]),
        "rounds": recipe.rounds,
        "lr": recipe.local.lr,
    }


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_is_the_papers_setting(name: str) -> None:
    recipe, local = load_recipe(name), load_recipe(name).local
    assert said(recipe) == {**BASE, **PAPER[name]}
    assert (recipe.partition["name"], recipe.partition["alpha"], recipe.partition["validation"]) == (
        "dirichlet", 0.1, 0.1,
    )  # fmt: skip
    assert (local.epochs, local.batch_size, local.momentum, local.weight_decay) == (3, 64, 0.0, 1e-4)
    assert {"name": "wsm", "tau": 1.0, "smoothing": 0.0, "distill": 0.0}.items() <= recipe.objective.items()
    assert recipe.algorithm == {"name": "fedavg"}
    assert recipe.tested_rounds == 100


def test_forgetting_is_measured_in_the_rounds_of_the_heatmaps_and_between() -> None:
    forgetting = load_recipe("resnet18-forgetting").forgetting
    due = [t for t in range(1, 4001) if forgetting.due(t)]
    assert due == [400, 800, 1200, 1600, 2000, 2400, 2800, 3200, 3600, 4000]
    never = load_recipe("resnet18-cifar10").forgetting
    assert not any(never.due(t) for t in range(1, 4001))


def sizes(name: str) -> tuple[int, int]:
    """Training and validation samples of each client of 50,000 images, which all have as many."""
    labels = np.repeat(np.arange(10), 5000)
    assignment = load_recipe(name).create("partition").assign(labels, num_classes=10)
    train = np.bincount(assignment.client[(assignment.client >= 0) & ~assignment.validation])
    validation = np.bincount(assignment.client[assignment.validation])
    assert (len(set(train)), len(set(validation))) == (1, 1)
    return int(train[0]), int(validation[0])


def test_a_client_of_100_has_450_samples_and_takes_21_steps_or_24_with_the_preset() -> None:
    assert sizes("resnet18-cifar10") == (450, 50)
    ours, theirs = (load_recipe("resnet18-cifar10", words).local for words in ([], ["preset=authors"]))
    assert LocalPlan.of(ours, 450).steps == 3 * 7  # 450 = 7 x 64 + 2
    assert LocalPlan.of(theirs, 450).steps == 3 * 8


def test_a_client_of_30_has_1666_samples_1499_of_them_to_train_on() -> None:
    assert sizes("resnet18-30-clients") == (1499, 167)  # 50,000 // 30 = 1666, a tenth of which is 166.6
    ours, theirs = (load_recipe("resnet18-30-clients", words).local for words in ([], ["preset=authors"]))
    assert LocalPlan.of(ours, 1499).steps == 3 * 23  # 1499 = 23 x 64 + 27
    assert LocalPlan.of(theirs, 1499).steps == 3 * 24


def test_each_recipe_that_inherits_says_only_what_differs() -> None:
    for name, path in shipped_recipes().items():
        tree = yaml.safe_load(path.read_text())
        if "base" not in tree:
            continue
        base = load_recipe(tree["base"]).tree()
        for key, value in tree.items():
            if isinstance(value, dict):
                assert all(base[key].get(inner) != mine for inner, mine in value.items()), (name, key)
            elif key != "base":
                assert base.get(key) not in (value, {"name": value}), (name, key)
                assert not isinstance(base.get(key), dict) or base[key]["name"] != value
