"""How long runs will take on this machine: some rounds of each cell are tried, and nothing of them is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedrecall.front.execute import Plan, execute, load_federation, recipe_experiment
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs import files
from fedrecall.runs.folder import RunFolder
from fedrecall.runs.lines import read_lines
from fedrecall.scratch import ScratchFolder
from fedrecall.studies.cells import PlannedRun, Slot
from fedrecall.studies.folder import OVER, State

# Of the five rounds that are tried the first warms up, one is probed, the last is evaluated and tested.
TRIED, PROBED, PLAIN = 5, 3, (2, 4)


def study_seconds(runs: Sequence[PlannedRun], states: Mapping[Slot, State], jobs: int) -> float:
    """For what is left of a study, so many runs at once; the runs of a cell take equally long."""
    of_cell: dict[str, float] = {}
    left = []
    for run in runs:
        state, cell = states[run.slot], run.slot.cell
        if state.kind not in OVER:
            if cell not in of_cell:
                of_cell[cell] = run_seconds(run.recipe)
            left.append(of_cell[cell] * (1 - state.rounds / run.recipe.rounds))
    return max([sum(left) / jobs, *left], default=0.0)


def run_seconds(recipe: Recipe) -> float:
    """For all rounds of a recipe, by those that are tried here."""
    probes = any(map(recipe.forgetting.due, range(1, recipe.rounds + 1)))
    tree = recipe.tree()
    forgetting = {key: value for key, value in tree["forgetting"].items() if key == "sample"}
    tried = Recipe(
        **{
            **tree,
            "rounds": TRIED,
            "evaluation": {**tree["evaluation"], "every": TRIED, "test_last": 1},
            "forgetting": {**forgetting, "rounds": [PROBED] if probes else []},
        }
    )
    with ScratchFolder("timing") as scratch:
        folder = RunFolder.create(scratch.path / "run")
        plan = Plan(recipe_experiment(tried, load_federation(tried)), folder, "timing")
        execute([plan], report=None, quiet=True)
        times = {line["round"]: line["seconds"] for line in read_lines(folder.path / files.TIMINGS)}
    return extrapolated(recipe, times)


def extrapolated(recipe: Recipe, times: Mapping[int, float]) -> float:
    """From the seconds of the tried rounds to those of all."""
    plain = sum(times[t] for t in PLAIN) / len(PLAIN)
    probe, evaluation = (max(0.0, times[t] - plain) for t in (PROBED, TRIED))
    rounds = range(1, recipe.rounds + 1)
    probed = sum(map(recipe.forgetting.due, rounds))
    measured = sum(recipe.evaluates(t) or t > recipe.rounds - recipe.tested_rounds for t in rounds)
    return recipe.rounds * plain + probed * probe + measured * evaluation
