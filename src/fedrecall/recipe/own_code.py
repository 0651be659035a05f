"""Which code of a user's own a recipe names: whatever it says as `module:name`. Nothing is imported to know.

A Ray cluster counts as such code: what comes from it is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrecall.errors import short_repr
from fedrecall.recipe.files import Tree
from fedrecall.recipe.recipe import SECTIONS
from fedrecall.recipe.settings import name_or_group, one_or_more

METRICS = "evaluation.metrics"
CLUSTER = "execution.ray_address"
JOINING = ("auto", "ray")  # the engines with which it is joined


def own_code(tree: Mapping[str, Any]) -> Tree:
    """The sections that name such code, with the options that it would be called with, and the metrics."""
    found: Tree = {}
    for section in SECTIONS:
        chosen = name_or_group(tree.get(section))
        if isinstance(chosen, Mapping) and is_own(chosen.get("name")):
            found[section] = dict(chosen)
    evaluation = tree.get("evaluation")
    metrics = one_or_more(evaluation.get("metrics")) if isinstance(evaluation, Mapping) else None
    if isinstance(metrics, list) and any(map(is_own, metrics)):
        found[METRICS] = metrics
    execution = tree.get("execution")
    if isinstance(execution, Mapping) and execution.get("engine", "auto") in JOINING:
        address = execution.get("ray_address")
        found |= {CLUSTER: address} if address is not None else {}
    return found


def is_own(name: object) -> bool:
    return isinstance(name, str) and ":" in name


def consequences(code: Mapping[str, Any]) -> list[str]:
    """What the names in what `own_code` has found would lead to, each once, in words."""
    found = [chosen["name"] for key, chosen in code.items() if key not in (METRICS, CLUSTER)]
    imported = dict.fromkeys([*found, *filter(is_own, code.get(METRICS, ()))])
    joined = [f"join the Ray cluster {short_repr(code[CLUSTER])}"] if CLUSTER in code else []
    return [*(f"import {short_repr(name)}" for name in imported), *joined]
