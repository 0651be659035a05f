"""How a method's lines look, on the page and in the figures: by its name, not by its place among others."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from fedrecall.titles import Titles

# No orange and no blue, which are for what is forgotten and gained. Those of one dash differ in lightness or in
# blue, so that colour-blind readers can tell them apart; seven colours and four dashes are 28 different lines,
# also in grey.
COLOURS = ("#1E8449", "#B5179E", "#A09A00", "#12A5A0", "#6D4FC2", "#6FBF2E", "#8E2043")
DASHES = ("solid", "dash", "dot", "dashdot")
GREY = "#888888"  # of bounds


@dataclass(frozen=True)
class Look:
    colour: str = COLOURS[0]
    dash: str = DASHES[0]
    number: int = 0  # for markers


def looks(recipes: Sequence[Mapping[str, Any]], titles: Titles) -> list[Look]:
    """Of methods on one page. Each has the colour of its name; where that is taken, the next free one.

    The first method of each name chooses before namesakes in other settings do.
    """
    names = [titles.method(recipe) for recipe in recipes]
    first = {name: place for place, name in reversed(list(enumerate(names)))}
    order = sorted(range(len(names)), key=lambda place: (first[names[place]] != place, place))
    found: dict[int, Look] = {}
    taken: set[int] = set()
    for place in order:
        algorithm = recipes[place]["algorithm"]["name"]
        if algorithm in titles.bounds:
            found[place] = Look(GREY, "dot" if algorithm == "local_only" else "dash")
            continue
        number = _next_free(_wish(recipes[place], titles), taken)
        taken.add(number)
        found[place] = _look(number)
    return [found[place] for place in range(len(names))]


def _wish(recipe: Mapping[str, Any], titles: Titles) -> int:
    """The place of its colour: with and without WSM, the first algorithms have different ones."""
    algorithm, objective = (_place(section, recipe[section], titles) for section in ("algorithm", "objective"))
    return (2 * algorithm + objective) % len(COLOURS)


def _place(section: str, chosen: Mapping[str, Any], titles: Titles) -> int:
    """Of what the recipe names among those that there are; of a user's own, a number of its name."""
    known = list(titles.sections.get(section, {}))
    name = str(chosen.get("class", chosen["name"]))
    return known.index(name) if name in known else crc32(name.encode("utf-8", "replace"))


def _next_free(wish: int, taken: set[int]) -> int:
    """From the wish on, all colours once; then all of them with another dash, and so on."""
    count = len(COLOURS)
    numbers = (lap * count + (wish + step) % count for lap in itertools.count() for step in range(count))
    return next(number for number in numbers if number not in taken)


def _look(number: int) -> Look:
    lap, colour = divmod(number, len(COLOURS))
    return Look(COLOURS[colour], DASHES[(colour + lap) % len(DASHES)], number)
