"""Colours and dashes of methods on the page and in figures, chosen by name rather than by position."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from fedrecall.config.titles import Titles

# Orange and blue are reserved for forgetting and gains. Colours of one dash differ in lightness or in blue, for
# colour-blind readers; seven colours and four dashes give 28 lines that differ even in grey.
COLOURS = ("#1E8449", "#B5179E", "#A09A00", "#12A5A0", "#6D4FC2", "#6FBF2E", "#8E2043")
DASHES = ("solid", "dash", "dot", "dashdot")
GREY = "#888888"  # for bounds


@dataclass(frozen=True)
class LineStyle:
    colour: str = COLOURS[0]
    dash: str = DASHES[0]
    number: int = 0  # for markers


def line_styles(recipes: Sequence[Mapping[str, Any]], titles: Titles) -> list[LineStyle]:
    """Return the looks of the methods on one page: the colour of the name or, if taken, the next free one.

    The first method of each name chooses before its namesakes in other settings.
    """
    names = [titles.method(recipe) for recipe in recipes]
    first = {name: place for place, name in reversed(list(enumerate(names)))}
    order = sorted(range(len(names)), key=lambda place: (first[names[place]] != place, place))
    found: dict[int, LineStyle] = {}
    taken: set[int] = set()
    for place in order:
        algorithm = recipes[place]["algorithm"]["name"]
        if algorithm in titles.bounds:
            found[place] = LineStyle(GREY, "dot" if algorithm == "local_only" else "dash")
            continue
        number = _next_free(_wish(recipes[place], titles), taken)
        taken.add(number)
        found[place] = _style(number)
    return [found[place] for place in range(len(names))]


def _wish(recipe: Mapping[str, Any], titles: Titles) -> int:
    """Return the preferred colour's index; it differs between the first algorithms, with and without WSM."""
    algorithm, objective = (_place(section, recipe[section], titles) for section in ("algorithm", "objective"))
    return (2 * algorithm + objective) % len(COLOURS)


def _place(section: str, chosen: Mapping[str, Any], titles: Titles) -> int:
    """Return the index of the chosen component among the shipped ones; for a user's own, a hash of its name."""
    known = list(titles.sections.get(section, {}))
    name = str(chosen.get("class", chosen["name"]))
    return known.index(name) if name in known else crc32(name.encode("utf-8", "replace"))


def _next_free(wish: int, taken: set[int]) -> int:
    """Return the first free number from `wish` on: all colours once, then all with the next dash, and so on."""
    count = len(COLOURS)
    numbers = (lap * count + (wish + step) % count for lap in itertools.count() for step in range(count))
    return next(number for number in numbers if number not in taken)


def _style(number: int) -> LineStyle:
    lap, colour = divmod(number, len(COLOURS))
    return LineStyle(COLOURS[colour], DASHES[(colour + lap) % len(DASHES)], number)
