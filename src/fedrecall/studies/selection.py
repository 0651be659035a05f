"""Select the runs of a study by words such as `lr=0.05`; the study's design does not change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedrecall.errors import InputError
from fedrecall.recipe.layers import look_up
from fedrecall.recipe.recipe import Recipe
from fedrecall.studies.cells import PlannedRun
from fedrecall.studies.design import grid_of

# Short names for keys of a recipe.
SHORT = {"dataset": "data", "lr": "local.lr", "norm": "model.norm", "alpha": "partition.alpha"}


def select_runs(runs: Sequence[PlannedRun], words: Iterable[str]) -> list[PlannedRun]:
    """Return the runs that have one of the given values for each key, and one of the given seeds."""
    wanted = grid_of(words)
    seeds = wanted.pop("seeds", None)
    kept = list(runs)
    for key, values in wanted.items():
        kept = runs_having(kept, key, values)
    return kept if seeds is None else with_seeds(kept, seeds)


def runs_having(runs: Sequence[PlannedRun], key: str, values: Sequence[Any]) -> list[PlannedRun]:
    there = [value_of(run.recipe, SHORT.get(key, key)) for run in runs]
    for value in values:
        if value not in there:
            known = ", ".join(str(each) for each in dict.fromkeys(there) if each is not None) or "none"
            raise InputError(f"{key} is {value!r}, which is not in this part of the study; there are: {known}")
    return [run for run, value in zip(runs, there) if value in values]


def value_of(recipe: Recipe, key: str) -> Any:
    """Return the value of a recipe's key; for a section, its name."""
    value = look_up(recipe.tree(), key)
    return value.get("name") if isinstance(value, Mapping) else value


def with_seeds(runs: Sequence[PlannedRun], seeds: Sequence[Any]) -> list[PlannedRun]:
    """Return the runs with these seeds; a single number n selects the study's first n seeds."""
    known = list(dict.fromkeys(run.slot.seed for run in runs))
    if len(seeds) == 1 and isinstance(seeds[0], int) and 1 <= seeds[0] <= len(known):
        seeds = known[: seeds[0]]
    elif len(seeds) == 1 or any(seed not in known for seed in seeds):
        given, there = (", ".join(map(str, each)) for each in (seeds, known))
        raise InputError(f"seeds is {given}; up to {len(known)}, or some of {there}, was expected")
    return [run for run in runs if run.slot.seed in seeds]
