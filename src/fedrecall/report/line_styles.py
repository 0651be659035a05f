"""Colours and dashes of methods on the page and in figures, chosen by name rather than by position."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from fedrecall.config.titles import Titles

# Orange and blue are reserved for forgetting and gains. Colours of one dash differ in lightness or in blue, for
# colour-blind readers; seven colours and four dashes give 28 lines that differ even in grey.
COLOURS = ("#1E8449", "#B5179E", "#A09A00", "#12A5A0", "#6D4FC2", "#6FBF2E", "#8E2043")
SHADES = ("#7BC99A", "#E88BDB", "#D6CF4A", "#7AD9D5", "#B3A3E6", "#B4E388", "#D9688C")  # of algorithms beyond seven
DASHES = ("solid", "dash", "dot", "dashdot")
GREY = "#888888"  # for bounds


MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")


@dataclass(frozen=True)
class LineStyle:
    colour: str = COLOURS[0]
    dash: str = DASHES[0]
    marker: str = MARKERS[0]
    hollow: bool = False  # whether the marker is only an outline


def line_styles(recipes: Sequence[Mapping[str, Any]], titles: Titles) -> list[LineStyle]:
    """Return the looks of the methods on one page.

    Of several algorithms, each has a colour and a marker, and each objective a dash. Methods of one algorithm have
    colours of their own.
    """
    ranked = [place for place, recipe in enumerate(recipes) if recipe["algorithm"]["name"] not in titles.bounds]
    shown = [recipes[place] for place in ranked]
    looks = by_algorithm(shown, titles) or by_method(shown, titles)
    found = dict(zip(ranked, looks))
    bounds = {place: bound_style(recipe) for place, recipe in enumerate(recipes) if place not in found}
    return [{**found, **bounds}[place] for place in range(len(recipes))]


def bound_style(recipe: Mapping[str, Any]) -> LineStyle:
    return LineStyle(GREY, "dot" if recipe["algorithm"]["name"] == "local_only" else "dash")


def by_algorithm(recipes: Sequence[Mapping[str, Any]], titles: Titles) -> list[LineStyle]:
    """Return a colour for each algorithm and a dash for each objective; nothing if there are too many of them.

    Namesakes in other settings take further dashes.
    """
    algorithms = [str(recipe["algorithm"].get("class", recipe["algorithm"]["name"])) for recipe in recipes]
    numbers = numbered_names(algorithms, [_place("algorithm", recipe["algorithm"], titles) for recipe in recipes])
    seen: Counter[tuple[str, str]] = Counter()
    variants = []  # how many methods have the same names, and the objective's place and name
    for algorithm, recipe in zip(algorithms, recipes):
        objective = recipe["objective"]
        name = str(objective.get("class", objective["name"]))
        variants.append((seen[algorithm, name], _place("objective", objective, titles), name))
        seen[algorithm, name] += 1
    dashes = {variant: number for number, variant in enumerate(sorted(set(variants)))}
    palette = COLOURS + SHADES
    laps = max(numbers.values(), default=0) // len(palette) + 1
    if len(numbers) < 2 or laps * len(dashes) > len(DASHES):
        return []
    found = []
    for algorithm, variant in zip(algorithms, variants):
        lap, colour = divmod(numbers[algorithm], len(palette))
        dash = dashes[variant] + lap * len(dashes)
        found.append(
            LineStyle(palette[colour], DASHES[dash], MARKERS[numbers[algorithm] % len(MARKERS)], hollow=dash == 1)
        )
    return found


def numbered_names(names: Sequence[str], wishes: Sequence[int]) -> dict[str, int]:
    """Return a number for each name: the wish within the first lap of colours, or the next free one."""
    found: dict[str, int] = {}
    for name, wish in zip(names, wishes):
        if name not in found:
            found[name] = _next_free(wish % len(COLOURS), set(found.values()))
    return found


def by_method(recipes: Sequence[Mapping[str, Any]], titles: Titles) -> list[LineStyle]:
    """Return the colour of each method's name or, if taken, the next free one.

    The first method of each name chooses before its namesakes in other settings.
    """
    names = [titles.method(recipe) for recipe in recipes]
    first = {name: place for place, name in reversed(list(enumerate(names)))}
    order = sorted(range(len(names)), key=lambda place: (first[names[place]] != place, place))
    found: dict[int, LineStyle] = {}
    taken: set[int] = set()
    for place in order:
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
    # Each lap gives a colour another dash and another marker.
    marker = MARKERS[(colour + lap) % len(COLOURS)]
    return LineStyle(COLOURS[colour], DASHES[(colour + lap) % len(DASHES)], marker)
