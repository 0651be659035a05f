"""The cells of a study, each a combination of settings with one run per seed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedrecall.config.components import PYTHON
from fedrecall.errors import InputError
from fedrecall.recipe.code_keys import names_code
from fedrecall.recipe.files import Tree
from fedrecall.recipe.layers import load_recipe, merge, set_value, without_the_others
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs import files
from fedrecall.runs.identity import hash_of, identity
from fedrecall.studies.design import Design

LONGEST_NAME = 120  # characters of a folder's name


@dataclass(frozen=True, eq=False)
class RunSlot:
    """The place of a run in the study's folder, whether or not the run has begun."""

    cell: str
    seed: int

    @property
    def folder(self) -> Path:
        return Path(files.RUNS) / self.cell / f"seed-{self.seed}"

    @property
    def title(self) -> str:
        return f"{self.cell} seed {self.seed}"


@dataclass(frozen=True, eq=False)
class Cell:
    """A combination of settings, and a run for each seed."""

    name: str
    settings: Tree  # by dotted key, from its case and the grid
    slots: tuple[RunSlot, ...]


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """A run to execute in a slot."""

    slot: RunSlot
    recipe: Recipe

    @cached_property
    def key(self) -> str:
        """A hash that is equal for runs with the same result."""
        return hash_of(identity(self.recipe.tree()))

    @property
    def has_own_code(self) -> bool:
        """Whether the recipe names the user's own code."""
        return bool(names_code(self.recipe.tree()))


def cells_of(design: Design) -> list[Cell]:
    """Return all cells in row order. No recipe is loaded, so a study can be read without its recipes."""
    combinations = design.combinations()
    # Objects are recognised by their names, so that these must not change as a study grows.
    varied = list(design.grid) if design.recipe == PYTHON else varying_keys(combinations)
    cells: list[Cell] = []
    taken: set[str] = set()
    for settings in combinations:
        name = cell_name({key: settings[key] for key in varied if key in settings}, taken)
        cells.append(Cell(name, settings, tuple(RunSlot(name, seed) for seed in design.seeds)))
    check_baseline(design, cells)
    return cells


def plan(design: Design, cells: Sequence[Cell], execution: Tree | None = None) -> list[PlannedRun]:
    """Return the runs in execution order: every cell with the first seed, then with the next.

    Raise an `InputError` with the cell's name if its settings do not make a recipe.
    """
    runs = []
    for slots in zip(*(cell.slots for cell in cells)):
        for cell, slot in zip(cells, slots):
            try:
                recipe = run_recipe(design, cell.settings, slot.seed, execution)
            except InputError as error:
                raise InputError(f"the cell {cell.name!r}: {error}" if len(cells) > 1 else str(error)) from None
            refuse_blind_choice(design, cell, recipe)
            runs.append(PlannedRun(slot, recipe))
    return runs


def run_recipe(design: Design, settings: Tree, seed: int, execution: Tree | None = None) -> Recipe:
    """Return the recipe overridden by the study's settings, the cell's settings and the seeds, in this order."""
    source = str(settings.get("recipe", design.recipe))
    layered: Tree = {}
    for layer in (design.settings, settings):
        tree: Tree = {}
        for key, value in layer.items():
            if key != "recipe":
                set_value(tree, key.split("."), value, key)
        layered = merge(without_the_others(layered, tree), tree)
    layered = merge(layered, {"seed": seed, "execution": execution or {}})
    recipe = load_recipe(source, extra=layered)
    given = design.same_partition or "partition.seed" in {**design.settings, **settings}
    if given or "seed" not in recipe.partition:
        return recipe
    return Recipe(**{**recipe.tree(), "partition": {**recipe.partition, "seed": seed}})


def varying_keys(combinations: list[Tree]) -> list[str]:
    """Return the keys whose values differ between combinations or are missing in some, in order."""
    keys = dict.fromkeys(key for settings in combinations for key in settings)
    written = [{key: json.dumps(value) for key, value in settings.items()} for settings in combinations]
    return [key for key in keys if len({flat.get(key) for flat in written}) > 1]


def cell_name(settings: Tree, taken: set[str]) -> str:
    """Return a folder name that is unique to the cell, such as `objective=wsm,local.lr=0.1`."""
    words = ",".join(f"{key}={short_value(value)}" for key, value in settings.items()) or "all"
    name = re.sub(r"[^\w.=,+-]+", "-", words, flags=re.ASCII).lstrip(".-")
    if len(name) > LONGEST_NAME or name in taken or name != words.replace(" ", "-"):
        mark = hash_of(settings)[:8]
        name = f"{name[:LONGEST_NAME]}-{mark}"
    taken.add(name)
    return name


def short_value(value: Any) -> str:
    """Return a value as a user would type it, a group as its name and options.

    >>> short_value({"name": "wsm", "tau": 0.5}), short_value(None), short_value([1, 2])
    ('wsm-tau-0.5', 'null', '1-2')
    """
    if isinstance(value, dict):
        return "-".join(
            short_value(inner) if key == "name" else f"{key}-{short_value(inner)}" for key, inner in value.items()
        )
    if isinstance(value, list):
        return "-".join(map(short_value, value))
    if isinstance(value, str):
        return Path(value).stem if value.endswith((".yaml", ".yml")) else value
    return json.dumps(value)


def check_baseline(design: Design, cells: list[Cell]) -> None:
    """Raise an `InputError` if no cell matches the baseline."""
    if design.baseline and not any(is_baseline(design, cell) for cell in cells):
        words = ", ".join(f"{key}={short_value(value)}" for key, value in design.baseline.items())
        raise InputError(
            f"the baseline is {words}, but no cell of the study is that; there are: {sample_of_cells(cells)}"
        )


def is_baseline(design: Design, cell: Cell) -> bool:
    settings = {**design.settings, **cell.settings}
    return all(key in settings and settings[key] == value for key, value in design.baseline.items())


def refuse_blind_choice(design: Design, cell: Cell, recipe: Recipe) -> None:
    """Raise an `InputError` if options are to be chosen without validation data."""
    if design.choose and recipe.partition.get("validation") == 0:
        raise InputError(
            f"choose is {', '.join(design.choose)}, but partition.validation of the cell {cell.name!r} is 0: "
            "options are chosen on validation data, never on test data"
        )


def sample_of_cells(cells: list[Cell]) -> str:
    names = [cell.name for cell in cells[:5]]
    return ", ".join(names) + (", .." if len(cells) > len(names) else "")
