"""Comparison of cross-entropy and WSM: two runs from one start that differ only in the objective."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedrecall.api.execute import RunPlan, new_folder
from fedrecall.errors import InputError
from fedrecall.recipe.files import Tree
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs.folder import RunFolder
from fedrecall.simulation.experiment import Experiment

PAIR = {"cross_entropy": "cross-entropy", "wsm": "WSM"}  # the objectives by name, with their titles


def check_is_wsm(recipe: Recipe, what: str, advice: str = "") -> None:
    """Raise an `InputError` if the recipe has another objective than WSM."""
    name = recipe.objective["name"]
    if name != "wsm":
        raise InputError(
            f"objective is {name!r}, but {what} compares cross_entropy with wsm; only options of wsm can be "
            f"given, as in objective.smoothing=0.003{advice}"
        )


def with_both_objectives(recipe: Recipe, wsm: Tree) -> dict[str, Recipe]:
    """Return the recipe with each of the two objectives, by name."""
    trees = zip(PAIR, ({"name": "cross_entropy"}, wsm))
    return {name: Recipe(**{**recipe.tree(), "objective": objective}) for name, objective in trees}


def plan_both(
    experiments: Mapping[str, Experiment], out: str | Path | None, default: str, titles: Mapping[str, str] = PAIR
) -> tuple[RunFolder, list[RunPlan]]:
    """Make the folder `out`, or a new one named `default` below `runs`, and plan the two runs in it."""
    parent = new_folder(out, default)
    plans = [
        RunPlan(experiment, RunFolder.create(parent.path / name), titles[name])
        for name, experiment in experiments.items()
    ]
    return parent, plans
