"""The keys of a recipe that lead to user code: names as `module:name`, and a Ray cluster, whose messages are
unpickled; also the trackers that send what they are told to other machines. Nothing is imported to find them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrecall.errors import short_repr
from fedrecall.recipe.files import Tree
from fedrecall.recipe.layers import look_up
from fedrecall.recipe.recipe import SECTIONS

CLUSTER = "execution.ray_address"
SENDING = ("mlflow", "wandb")  # trackers that may send to another machine
OF_COMPONENTS = ("local.optimiser", "participation", "updates", "server_data", "trackers")  # beside the sections
CODE_KEYS = (*SECTIONS, *OF_COMPONENTS, "evaluation.metrics", CLUSTER)


def names_code(tree: Tree) -> Tree:
    """Return the keys of a recipe that lead to user code, with their values, options included."""
    found = {key: look_up(tree, key) for key in CODE_KEYS}
    if look_up(tree, "execution.engine") not in (None, "auto", "ray"):  # other engines join no cluster
        found[CLUSTER] = None
    return {key: value for key, value in found.items() if consequences(key, value)}


def consequences(key: str, value: Any) -> list[str]:
    """Return in words what the value of one of these keys does; empty if it leads to no user code."""
    if key == CLUSTER:
        return [] if value is None else [f"join the Ray cluster {short_repr(value)}"]
    items = value if isinstance(value, list) else [value]
    if key == "trackers":
        told = [item.get("name") if isinstance(item, Mapping) else item for item in items]
        sending = [f"send its metrics to {name}" for name in SENDING if name in told]
        return sending + [words for item in items for words in consequences("", item)]
    names = [item.get("name") if isinstance(item, Mapping) else item for item in items]
    return [f"import {short_repr(name)}" for name in names if isinstance(name, str) and ":" in name]
