"""A part of a study: the cells and seeds that words choose. The study stays what it is; only less of it is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedrecall.errors import InputError
from fedrecall.recipe.layers import look_up
from fedrecall.studies.cells import Cell
from fedrecall.studies.design import grid_of

# What people say for a key of a recipe.
SHORT = {"dataset": "data", "lr": "local.lr", "norm": "model.norm", "alpha": "partition.alpha"}


def narrowed(cells: Sequence[Cell], words: Iterable[str]) -> list[Cell]:
    """The cells that have one of the given values of each key, with the seeds that are given."""
    wanted = grid_of(words)
    seeds = wanted.pop("seeds", None)
    kept = list(cells)
    for key, values in wanted.items():
        kept = having(kept, key, values)
    return kept if seeds is None else [with_seeds(cell, seeds) for cell in kept]


def having(cells: Sequence[Cell], key: str, values: Sequence[Any]) -> list[Cell]:
    there = {cell.name: value_of(cell, SHORT.get(key, key)) for cell in cells}
    known = list(dict.fromkeys(there.values()))
    for value in values:
        if value not in known:
            found = ", ".join(str(each) for each in known if each is not None)
            raise InputError(
                f"{key} is {value!r}, which is not in this part of the study; there are: {found or '-'}"
            )
    return [cell for cell in cells if there[cell.name] in values]


def value_of(cell: Cell, key: str) -> Any:
    """Of the cell's recipe; of a section, what it names."""
    value = look_up(cell.recipe.tree(), key)
    return value.get("name") if isinstance(value, Mapping) else value


def with_seeds(cell: Cell, seeds: Sequence[Any]) -> Cell:
    """A single number stands for that many of the study's seeds, from its first; several are the seeds."""
    known = [run.seed for run in cell.runs]
    if len(seeds) == 1 and isinstance(seeds[0], int) and 1 <= seeds[0] <= len(known):
        return replace(cell, runs=cell.runs[: seeds[0]])
    if len(seeds) == 1 or any(seed not in known for seed in seeds):
        given = ", ".join(map(str, seeds))
        raise InputError(
            f"seeds is {given}; up to {len(known)}, or some of {', '.join(map(str, known))}, was expected"
        )
    return replace(cell, runs=tuple(run for run in cell.runs if run.seed in seeds))
