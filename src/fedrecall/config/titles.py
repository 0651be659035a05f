"""Display titles: SCAFFOLD for the class Scaffold, LeNet for the function lenet.

A class or function carries its title; modules that must not import it (the report) receive all titles by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


def titled(title: str) -> Callable[[T], T]:
    """Return a decorator that sets a function's title; a class sets `title` itself."""

    def give(thing: T) -> T:
        thing.title = title  # type: ignore[attr-defined]
        return thing

    return give


def title_of(thing: Any) -> str:
    """Return the title of a class or function, or else its name.

    >>> title_of(titled("LeNet")(lambda: None)), title_of(title_of)
    ('LeNet', 'title_of')
    """
    title = getattr(thing, "title", None)
    return title if isinstance(title, str) else str(thing.__name__)


@dataclass(frozen=True)
class Titles:
    """The titles of all components that a recipe can name, by section, then by name."""

    sections: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    bounds: frozenset[str] = frozenset()  # algorithms that bound the others and are not ranked

    def of(self, section: str, chosen: Mapping[str, Any]) -> str:
        """Return the title of the component that a section names; for a user's own, the last part of its name."""
        name = str(chosen.get("class", chosen["name"]))
        return self.sections.get(section, {}).get(name, name.rpartition(":")[2] or name)

    def method(self, recipe: Mapping[str, Any]) -> str:
        """Return the title of a recipe's method, as `FedAvg + WSM`; cross-entropy is left out, as in papers."""
        algorithm, objective = (self.of(section, recipe[section]) for section in ("algorithm", "objective"))
        return f"{algorithm} + {objective}" if objective else algorithm
