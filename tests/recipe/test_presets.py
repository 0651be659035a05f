"""The authors' preset: each switch by hand, and what goes over what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fedrecall import Federation, Iid, InputError, Local, federate
from fedrecall.recipe.layers import load_recipe

NORMAL = {  # what the preset switches, in the base case
    "local.partial_batch": "drop",
    "local.beta_from": "train",
    "local.weight_decay": 1e-4,
    "evaluation.test_last": 100,
    "partition.split": "shuffled",
    "model.variant": "paper",
}
AUTHORS = {
    "local.partial_batch": "keep",
    "local.beta_from": "train+validation",
    "evaluation.test_last": 101,
    "partition.split": "draw_order",
    "model.variant": "authors",
}


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def changes(source: str, *words: str) -> dict[str, Any]:
    """The keys that the preset changes, and what to."""
    before, after = (
        flat(load_recipe(source, words).tree()),
        flat(load_recipe(source, [*words, "preset=authors"]).tree()),
    )
    assert "preset" not in after
    return {key: value for key, value in after.items() if before.get(key) != value}


def test_the_switches_are_off_by_default() -> None:
    found = flat(load_recipe("resnet18-cifar10").tree())
    assert {key: found[key] for key in NORMAL} == NORMAL
    assert load_recipe("resnet18-cifar100").data["normalisation"] == "cifar100"
    assert load_recipe("resnet18-femnist").data["augment"] is False


def test_the_preset_is_their_code_on_cifar10() -> None:
    assert changes("resnet18-cifar10") == AUTHORS


def test_on_cifar100_it_has_the_other_means_and_lenet_has_no_variant() -> None:
    assert changes("resnet18-cifar100") == {**AUTHORS, "data.normalisation": "cifar10"}
    expected = {key: value for key, value in AUTHORS.items() if key != "model.variant"}
    assert changes("lenet-cifar100") == {**expected, "data.normalisation": "cifar10"}


@pytest.mark.parametrize("algorithm", ["scaffold", "fednova", "fedprox"])
def test_outside_fedavg_the_weight_decay_is_a_tenth(algorithm: str) -> None:
    assert changes("resnet18-30-clients", f"algorithm={algorithm}") == {**AUTHORS, "local.weight_decay": 1e-5}


def test_on_femnist_it_augments_and_pools_the_writers() -> None:
    assert changes("resnet18-femnist") == {**AUTHORS, "data.augment": True}
    pooled = load_recipe("lenet-femnist-natural", ["partition.seed=3", "preset=authors"]).partition
    assert pooled == {
        "name": "dirichlet", "alpha": 0.1, "clients": 100, "validation": 0.1, "seed": 3, "held_out": 0,
        "split": "draw_order",
    }  # fmt: skip


def test_every_switch_can_be_said_over_it_and_alone() -> None:
    for key, normal in NORMAL.items():
        found = flat(load_recipe("resnet18-cifar10", ["preset=authors", f"{key}={normal}"]).tree())
        assert found[key] == normal
        assert all(found[other] == value for other, value in AUTHORS.items() if other != key)
    for key, value in AUTHORS.items():
        found = flat(load_recipe("resnet18-cifar10", [f"{key}={value}"]).tree())
        assert found[key] == value
        assert all(found[other] == normal for other, normal in NORMAL.items() if other != key)


def test_names_on_the_command_line_decide_which_switches_there_are() -> None:
    loaded = load_recipe("resnet18-cifar10", ["preset=authors", "data=cifar100", "model=lenet", "algorithm=scaffold"])
    assert loaded.data["normalisation"] == "cifar10"
    assert (loaded.model["name"], loaded.model["head"]) == ("lenet", "linear")
    assert loaded.local.weight_decay == 1e-5
    assert load_recipe("lenet-femnist-natural", ["preset=authors", "partition=natural"]).partition["name"] == "natural"
    assert "split" not in load_recipe("demo", ["preset=authors", "partition=iid"]).partition


def test_in_a_file_it_is_over_the_base_and_under_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: resnet18-cifar10\npreset: authors\nlocal: {partial_batch: drop}\n")
    loaded = load_recipe(str(path))
    assert (loaded.local.partial_batch, loaded.evaluation.test_last) == ("drop", 101)
    (tmp_path / "above.yaml").write_text("base: mine.yaml\nevaluation: {test_last: 7}\n")
    loaded = load_recipe(str(tmp_path / "above.yaml"))
    assert (loaded.local.beta_from, loaded.evaluation.test_last) == ("train+validation", 7)
    assert load_recipe(str(path), ["preset=null"]) == load_recipe("resnet18-cifar10")


def test_the_identity_is_that_of_the_switches(tmp_path: Path) -> None:
    by_key = load_recipe("resnet18-cifar10", ["preset=authors"])
    by_switch = load_recipe("resnet18-cifar10", [f"{key}={value}" for key, value in AUTHORS.items()])
    assert by_key == by_switch
    (tmp_path / "again.yaml").write_text(by_key.yaml())
    assert load_recipe(str(tmp_path / "again.yaml")).digest() == by_key.digest()
    assert by_key.digest() != load_recipe("resnet18-cifar10").digest()


@pytest.mark.parametrize("bad", ["autors", "[authors]", "3", "true", "{name: authors}"])
def test_an_unknown_preset_is_one_sentence(bad: str) -> None:
    with pytest.raises(InputError, match=r"^preset is .*, which is not known; "):
        load_recipe("demo", [f"preset={bad}"])


def test_it_is_a_keyword_of_federate(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    federation = Federation.from_arrays(x, y, test=(x, y), partition=Iid(clients=4, validation=0.2))
    for place, local in enumerate([Local(lr=0.5, partial_batch="drop"), {"lr": 0.5, "partial_batch": "drop"}]):
        out = tmp_path / str(place)
        federate("mlp", federation, algorithm="fedprox", preset="authors", local=local, rounds=1, out=out)
        said = yaml.safe_load((out / "recipe.yaml").read_text())
        kept = {key: said["local"][key] for key in ("lr", "partial_batch", "beta_from", "weight_decay")}
        assert kept == {"lr": 0.5, "partial_batch": "drop", "beta_from": "train+validation", "weight_decay": 1e-5}
        assert said["evaluation"]["test_last"] == 101
