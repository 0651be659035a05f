"""Compare a study's results with published ones: both means, and the difference with its interval."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrecall.errors import InputError
from fedrecall.recipe.recipe import Recipe
from fedrecall.report.intervals import welch_interval
from fedrecall.report.paper_results import Published, published
from fedrecall.report.tables import mean_and_deviation
from fedrecall.report.wording import points, points_range, with_deviation
from fedrecall.storage.safe_parsing import regular_file, yaml_value
from fedrecall.studies.selection import value_of

PAPER = "paper"  # the paper that this package implements
NUMBERS = ("accuracy", "sd", "seeds")


Source = Callable[[Recipe], Published | None]


def published_source(name: str) -> Source:
    """Return a function that looks up published results in the paper or in a file."""
    if name == PAPER:
        return lambda recipe: published(recipe.tree())
    rows = read_published(Path(name))
    return lambda recipe: next((number for settings, number in rows if matches_settings(recipe, settings)), None)


def read_published(path: Path) -> list[tuple[dict[str, object], Published]]:
    """Read a CSV file with columns accuracy, sd, seeds and recipe keys; an empty field matches any value."""
    try:
        with regular_file(path).open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(line for line in file if not line.startswith("#")))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise InputError(f"published is {str(path)!r}, which cannot be read: {reason}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            accuracy, sd, seeds = (float(line[key]) for key in NUMBERS)
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"row {number} of {str(path)!r} has no numbers accuracy, sd and seeds; a row for each published "
                "result was expected"
            ) from None
        settings = {key: yaml_value(text) for key, text in line.items() if key and key not in NUMBERS and text}
        found.append((settings, Published(accuracy, sd, int(seeds))))
    return found


def matches_settings(recipe: Recipe, settings: dict[str, object]) -> bool:
    return all(value_of(recipe, key) == value for key, value in settings.items())


@dataclass(frozen=True)
class PublishedComparison:
    """A cell's final accuracies, one per seed, and its published result."""

    values: list[float]
    published: Published | None

    @property
    def difference(self) -> float | None:
        return float(np.mean(self.values)) - self.published.accuracy if self.values and self.published else None

    @property
    def interval(self) -> tuple[float, float] | None:
        if self.published is None:
            return None
        return welch_interval(self.values, self.published.accuracy, self.published.sd, self.published.seeds)

    def texts(self) -> list[str]:
        """Return our accuracy, the published one, the difference and its interval as texts."""
        theirs, shown = self.published, "-"
        if theirs is not None:
            shown = with_deviation(theirs.accuracy, theirs.sd) + ("†" if theirs.remark else "")
        difference = self.difference
        return [
            mean_and_deviation(self.values) or "-",
            shown,
            points(difference) if difference is not None else "-",
            points_range(self.interval),
        ]


HEADING = ("ours, %", "published, %", "difference, points", "95 % interval (Welch)")


def remarks(rows: Sequence[PublishedComparison]) -> list[str]:
    """Return each remark on differences from the published settings once."""
    found = dict.fromkeys(row.published.remark for row in rows if row.published and row.published.remark)
    return [f"† {remark}." for remark in found]
