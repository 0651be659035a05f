"""Which code of a user's own a recipe names: whatever it says as `module:name`. Nothing is imported to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrecall.recipe.files import Tree
from fedrecall.recipe.recipe import NAMED
from fedrecall.recipe.settings import name_or_group, one_or_more

METRICS = "evaluation.metrics"


def own_code(tree: Mapping[str, Any]) -> Tree:
    """The sections that name such code, with the options that it would be called with, and the metrics."""
    found: Tree = {}
    for section in NAMED:
        chosen = name_or_group(tree.get(section))
        if isinstance(chosen, Mapping) and is_own(chosen.get("name")):
            found[section] = dict(chosen)
    evaluation = tree.get("evaluation")
    metrics = one_or_more(evaluation.get("metrics")) if isinstance(evaluation, Mapping) else None
    if isinstance(metrics, list) and any(map(is_own, metrics)):
        found[METRICS] = metrics
    return found


def is_own(name: object) -> bool:
    return isinstance(name, str) and ":" in name


def names(code: Mapping[str, Any]) -> list[str]:
    """Each name in what `own_code` has found, once."""
    found = [chosen["name"] for key, chosen in code.items() if key != METRICS]
    return list(dict.fromkeys([*found, *filter(is_own, code.get(METRICS, ()))]))
