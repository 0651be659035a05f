"""What things are called where people read them: SCAFFOLD for the class Scaffold, LeNet for the function lenet.

A class or function carries its title; readers that must not know it (the report) are given all titles by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


def titled(title: str) -> Callable[[T], T]:
    """Give a function its title. (A class says `title = ...`.)"""

    def give(thing: T) -> T:
        thing.title = title  # type: ignore[attr-defined]
        return thing

    return give


def title_of(thing: Any) -> str:
    """Its title, or else its name.

    >>> title_of(titled("LeNet")(lambda: None)), title_of(title_of)
    ('LeNet', 'title_of')
    """
    title = getattr(thing, "title", None)
    return title if isinstance(title, str) else str(thing.__name__)


@dataclass(frozen=True)
class Titles:
    """The titles of everything that a recipe can name: by section of the recipe, then by name."""

    sections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    bounds: frozenset[str] = frozenset()  # algorithms that others lie between; they do not compete

    def of(self, section: str, chosen: Mapping[str, Any]) -> str:
        """Of what a recipe's section names; of the user's own, the last part of its name."""
        name = str(chosen.get("class", chosen["name"]))
        return self.sections.get(section, {}).get(name, name.rpartition(":")[2] or name)

    def method(self, recipe: Mapping[str, Any]) -> str:
        """`FedAvg`, `FedAvg + WSM`: as in papers, an algorithm alone is with cross-entropy."""
        algorithm, objective = (self.of(section, recipe[section]) for section in ("algorithm", "objective"))
        return f"{algorithm} + {objective}" if objective else algorithm
