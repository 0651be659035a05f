"""The display titles of the names in a recipe."""

from __future__ import annotations

from functools import cache

from fedrecall.algorithms import ALGORITHMS
from fedrecall.config.components import PYTHON
from fedrecall.config.titles import Titles, title_of
from fedrecall.recipe.recipe import SECTIONS

OF_PYTHON = {"data": "data given in Python", "model": "a model given in Python"}


@cache
def titles() -> Titles:
    sections = {
        key: {name: title_of(thing) for name, thing in section.listing.items()} for key, section in SECTIONS.items()
    }
    for section, title in OF_PYTHON.items():
        sections[section][PYTHON] = title
    bounds = frozenset(name for name, kind in ALGORITHMS.items() if not kind.exchanges)
    return Titles(sections, bounds)
