"""Presets: one key for several others, which depend on the data, the model and the algorithm of the recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedrecall.recipe.files import Tree
from fedrecall.recipe.settings import name_or_group


def authors(recipe: Tree) -> Tree:
    """Return the settings of the authors' code where the paper differs or is silent (docs/paper.md)."""
    data, model, algorithm = (section_keys(recipe[section]).get("name") for section in ("data", "model", "algorithm"))
    partition = section_keys(recipe["partition"])
    switches: Tree = {
        "local": {"partial_batch": "keep", "beta_from": "train+validation"},
        "evaluation": {"test_last": 101},
    }
    if algorithm != "fedavg":
        switches["local"]["weight_decay"] = 1e-5
    # Each with its name: a name in a layer above would drop an option without one.
    if data == "cifar100":
        switches["data"] = {"name": data, "normalisation": "cifar10"}
    if data == "femnist":
        switches["data"] = {"name": data, "augment": True}
    if partition.get("name") == "dirichlet":
        switches["partition"] = {"name": "dirichlet", "split": "draw_order"}
    elif data == "femnist" and partition.get("name") == "natural":
        kept = {key: partition[key] for key in ("validation", "seed", "held_out") if key in partition}
        switches["partition"] = {"name": "dirichlet", "alpha": 0.1, "clients": 100, "split": "draw_order", **kept}
    if model == "resnet18":
        switches["model"] = {"name": model, "variant": "authors"}
    return switches


def section_keys(section: Any) -> Tree:
    """Return a section as a group of keys; empty if it is invalid, which is refused later."""
    keys = name_or_group(section)
    return keys if isinstance(keys, dict) else {}


PRESETS: dict[str, Callable[[Tree], Tree]] = {"authors": authors}
