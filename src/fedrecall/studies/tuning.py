"""Choose the values of options by validation accuracy, never by test data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from fedrecall.recipe.files import Tree
from fedrecall.studies.cells import Cell


def choose_by_validation(
    cells: Sequence[Cell], keys: Sequence[str], scores: Mapping[str, Sequence[float | None]]
) -> list[Cell]:
    """Return the cell with the highest mean score, or the first of equals, of each group differing in `keys` only.

    `scores` has a score for each run of a cell, None for unfinished runs. A cell with unfinished runs is chosen
    only if no cell of its group is complete."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(group_key(cell.settings, keys), []).append(cell)
    return [max(group, key=lambda cell: standing(scores[cell.name])) for group in groups.values()]


def standing(scores: Sequence[float | None]) -> tuple[int, float]:
    """Return the sort key of a cell: completeness, then the mean, rounded so that equal means compare equal."""
    known = [score for score in scores if score is not None]
    whole = len(known) == len(scores)
    return (2 if whole else 1 if known else 0), round(float(np.mean(known)), 12) if known else 0.0


def group_key(settings: Tree, keys: Sequence[str]) -> str:
    """Return a string that is equal for cells whose settings differ in `keys` only."""
    return json.dumps({key: value for key, value in settings.items() if key not in keys}, sort_keys=True)
