"""Which value of an option a study goes with: that which is best on validation data. Test data never decide."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from fedrecall.recipe.files import Tree
from fedrecall.runs.reader import RunRecord
from fedrecall.studies.cells import Cell


def last_validation(record: RunRecord) -> float | None:
    """The mean validation accuracy over the evaluated rounds among the last ones that the run did."""
    rounds, values = record.curve("val_accuracy")
    last = values[rounds > record.rounds_done - window_of(record)] if len(rounds) else values
    return float(last.mean()) if len(last) else None


def window_of(record: RunRecord) -> int:
    """Over how many last rounds a run is judged: as many as were tested, so that both go by the same rounds."""
    return int(record.summary.get("final_accuracy_rounds") or 1)


def choose(cells: Sequence[Cell], keys: Sequence[str], scores: Mapping[str, Sequence[float | None]]) -> list[Cell]:
    """Of the cells that differ in nothing but these keys, the one with the highest mean score; the first of equal
    ones. `scores` has a score for each run of a cell, None for one that is not finished: a cell with such a run is
    chosen only where there is no other."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(others(cell.settings, keys), []).append(cell)
    return [max(group, key=lambda cell: standing(scores[cell.name])) for group in groups.values()]


def standing(scores: Sequence[float | None]) -> tuple[int, float]:
    """What cells are ordered by; equal means are equal, whatever the rounding of their sums."""
    known = [score for score in scores if score is not None]
    whole = len(known) == len(scores)
    return (2 if whole else 1 if known else 0), round(float(np.mean(known)), 12) if known else 0.0


def others(settings: Tree, keys: Sequence[str]) -> str:
    """Equal for cells that differ in nothing but these keys."""
    return json.dumps({key: value for key, value in settings.items() if key not in keys}, sort_keys=True)
