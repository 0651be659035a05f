"""Recipe files: the shipped ones, and reading a recipe with its bases."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Any

from fedrecall.errors import InputError, nearest, short_repr
from fedrecall.storage.safe_parsing import MOST_YAML, regular_file, yaml_value

Tree = dict[str, Any]
MOST_BASES = 10  # in a chain; each file may take seconds to read


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that come with the package, by name."""
    folder = Path(str(resources.files("fedrecall") / "recipe" / "shipped"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"), key=lambda path: path.stem)}


def with_bases(source: str) -> list[Tree]:
    """Return the trees of a recipe and its chain of bases, lowest first."""
    trees: list[Tree] = []
    names, places, folder = [source], set[str](), Path()
    while True:
        path = place_of(names[-1], folder)
        try:
            tree = dict(read_recipe(names[-1], folder))
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
    """Return the path of a shipped recipe, or of a file, which may be relative to `folder`."""
    return shipped_recipes().get(source, folder / source)


def read_recipe(source: str, folder: Path = Path()) -> Tree:
    """Return the tree of a shipped recipe or of a file, whose path may be relative to `folder`."""
    path = place_of(source, folder)
    if os.path.isdir(path):  # accepts any name, unlike `Path.stat`
        raise InputError(f"the recipe {source!r} is a folder; a file was expected, as {source}/recipe.yaml")
    try:
        tree = yaml_value(text_of(regular_file(path)))
    except (FileNotFoundError, NotADirectoryError):
        if path.suffix in (".yaml", ".yml") or "/" in source:
            raise InputError(f"there is no recipe file {source!r}") from None
        raise InputError(
            f"there is no recipe {source!r}, by name or as a file; {nearest(source, shipped_recipes())}"
        ) from None
    except InputError as error:
        raise InputError(f"the recipe {source!r}: {error}") from None
    except UnicodeDecodeError:
        raise InputError(f"the recipe {source!r}: it is not YAML: it is not text in UTF-8") from None
    except OSError as error:
        raise InputError(f"the recipe {source!r} cannot be read: {error.strerror}") from None
    except ValueError:  # a null character, which no file name has
        raise InputError(f"there is no recipe {source!r}, by name or as a file") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        is_a = "a list" if isinstance(tree, list) else short_repr(tree)
        raise InputError(f"the recipe {source!r} is {is_a}; keys with values were expected, as in rounds: 80")
    return tree


def text_of(path: Path) -> str:
    """Return the text of a file, at most one character more than a recipe may have."""
    with path.open(encoding="utf-8") as file:
        return file.read(MOST_YAML + 1)
