"""Recipes as files: the shipped ones, and reading one."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from fedrecall.errors import InputError, nearest
from fedrecall.safe_parsing import MOST_YAML, regular_file, yaml_value

Tree = dict[str, Any]


def shipped() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    folder = Path(str(resources.files("fedrecall") / "recipe" / "shipped"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read(source: str) -> Tree:
    """The tree of a shipped recipe or of a file."""
    known = shipped()
    path = known.get(source, Path(source))
    if path.is_dir():
        raise InputError(f"the recipe {source!r} is a folder; a file was expected, as {source}/recipe.yaml")
    try:
        tree = yaml_value(text_of(regular_file(path)))
    except (FileNotFoundError, NotADirectoryError):
        if path.suffix in (".yaml", ".yml") or "/" in source:
            raise InputError(f"there is no recipe file {source!r}") from None
        raise InputError(
            f"there is no recipe {source!r}, by name or as a file; {nearest(source, known)}"
        ) from None
    except InputError as error:
        raise InputError(f"the recipe {source!r}: {error}") from None
    except UnicodeDecodeError:
        raise InputError(f"the recipe {source!r}: it is not YAML: it is not text in UTF-8") from None
    except OSError as error:
        raise InputError(f"the recipe {source!r} cannot be read: {error.strerror}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise InputError(f"the recipe {source!r} is not a list of keys and values")
    return tree


def text_of(path: Path) -> str:
    """No more of a file than a recipe may have, were it a disk image."""
    with path.open(encoding="utf-8") as file:
        return file.read(MOST_YAML + 1)
