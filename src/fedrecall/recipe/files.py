"""Recipes as files: the shipped ones, and reading one with those that it comes from."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Any

from fedrecall.errors import InputError, nearest, short_repr
from fedrecall.safe_parsing import MOST_YAML, regular_file, yaml_value

Tree = dict[str, Any]
MOST_BASES = 10  # one below the other; each file may take seconds to read


def shipped() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    folder = Path(str(resources.files("fedrecall") / "recipe" / "shipped"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"), key=lambda path: path.stem)}


def with_bases(source: str) -> list[Tree]:
    """The trees of a recipe and of all that it comes from by `base`, the lowest first."""
    trees: list[Tree] = []
    names, places, folder = [source], set[str](), Path()
    while True:
        path = place_of(names[-1], folder)
        try:
            tree = dict(read(names[-1], folder))
        except InputError as error:
            raise InputError(f"{error} (a base of {names[-2]!r})" if trees else str(error)) from None
        place = os.path.realpath(path)
        if place in places:
            raise InputError(f"the recipe {names[-1]!r} is a base of itself: {', '.join(names)}")
        if len(places) == MOST_BASES:
            raise InputError(f"the recipe {source!r} has more than {MOST_BASES - 1} bases, one below the other")
        places.add(place)
        base = tree.pop("base", None)
        trees.insert(0, tree)
        if base is None:
            return trees
        if not isinstance(base, str):
            raise InputError(
                f"the recipe {names[-1]!r}: base is {short_repr(base)}; a recipe's name or a file was expected"
            )
        names.append(base)
        folder = path.parent


def place_of(source: str, folder: Path = Path()) -> Path:
    """Where a recipe is: a shipped one, or a file, whose path may begin at `folder`."""
    return shipped().get(source, folder / source)


def read(source: str, folder: Path = Path()) -> Tree:
    """The tree of a shipped recipe or of a file, whose path may begin at `folder`."""
    path = place_of(source, folder)
    if os.path.isdir(path):  # which takes any name
        raise InputError(f"the recipe {source!r} is a folder; a file was expected, as {source}/recipe.yaml")
    try:
        tree = yaml_value(text_of(regular_file(path)))
    except (FileNotFoundError, NotADirectoryError):
        if path.suffix in (".yaml", ".yml") or "/" in source:
            raise InputError(f"there is no recipe file {source!r}") from None
        raise InputError(
            f"there is no recipe {source!r}, by name or as a file; {nearest(source, shipped())}"
        ) from None
    except InputError as error:
        raise InputError(f"the recipe {source!r}: {error}") from None
    except UnicodeDecodeError:
        raise InputError(f"the recipe {source!r}: it is not YAML: it is not text in UTF-8") from None
    except OSError as error:
        raise InputError(f"the recipe {source!r} cannot be read: {error.strerror}") from None
    except ValueError:  # a null character, which no name of a file has
        raise InputError(f"there is no recipe {source!r}, by name or as a file") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise InputError(f"the recipe {source!r} is not a list of keys and values")
    return tree


def text_of(path: Path) -> str:
    """No more of a file than a recipe may have, were it a disk image."""
    with path.open(encoding="utf-8") as file:
        return file.read(MOST_YAML + 1)
