"""The reference of the recipe: every key with its default and meaning, generated from the models."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

import yaml

from fedrecall.recipe.presets import PRESETS
from fedrecall.recipe.recipe import SECTIONS, Recipe
from fedrecall.recipe.settings import Settings
from fedrecall.updates import STAGE

COLUMN = 36
# Keys of a recipe's file that are gone once the layers are merged.
OF_A_FILE = {
    "base": "a recipe's name, or a file beside this one: what it says holds where this one says nothing",
    "preset": f"{' | '.join(PRESETS)}: several switches as one key (docs/paper.md), over the base, under the rest",
}


def reference() -> str:
    """Return all keys as commented YAML."""
    return "\n".join([*(comment(f"# {key}:", meaning) for key, meaning in OF_A_FILE.items()), *lines(Recipe())])


def lines(group: Settings, indent: str = "") -> Iterator[str]:
    for key, field in type(group).model_fields.items():
        meaning = field.description or ""
        default = getattr(group, key)
        if isinstance(group, Recipe) and key in SECTIONS:
            yield from named(key, meaning)
        elif isinstance(group, Recipe) and key == STAGE.key:
            yield comment(f"{key}: {value(default)}", f"{meaning}; or module:name of your own")
            yield from stages()
        elif isinstance(default, Settings):
            yield comment(f"{indent}{key}:", meaning)
            yield from lines(default, indent + "  ")
        elif default is None:  # one of a pair, or an option that is off
            yield comment(f"{indent}# {key}:", meaning)
        else:
            yield comment(f"{indent}{key}: {value(default)}", meaning)


def named(section: str, meaning: str) -> Iterator[str]:
    """Yield the lines of a section that names a component: the default one, then the others."""
    default = Recipe.model_fields[section].default["name"]
    yield comment(f"{section}:", f"{meaning}; or module:name of your own")
    for name, target in SECTIONS[section].listing.items():
        mark = "  " if name == default else "  # "
        yield comment(f"{mark}name: {name}", first_line(target))
        for key, parameter in SECTIONS[section].options(target).items():
            missing = parameter.default is parameter.empty
            text = f"{mark}  {key}: {'' if missing else value(parameter.default)}".rstrip()
            yield comment(text if name != default else text.replace("    ", "  ", 1), doc(parameter))


def stages() -> Iterator[str]:
    """Yield the lines of the stages that a list of updates can name."""
    for name, target in STAGE.listing.items():
        yield comment(f"  # - name: {name}", first_line(target))
        for key, parameter in STAGE.options(target).items():
            missing = parameter.default is parameter.empty
            yield comment(f"  #   {key}: {'' if missing else value(parameter.default)}".rstrip(), doc(parameter))


def first_line(target: Callable[..., Any]) -> str:
    return (inspect.getdoc(target) or "").split("\n")[0]


def doc(parameter: inspect.Parameter) -> str:
    """Return the sentence in `Annotated[type, "sentence"]`."""
    if typing.get_origin(parameter.annotation) is not typing.Annotated:
        return ""
    return next((extra for extra in typing.get_args(parameter.annotation)[1:] if isinstance(extra, str)), "")


def value(default: Any) -> str:
    if isinstance(default, tuple):
        default = list(default)
    text: str = yaml.safe_dump(default, default_flow_style=True, width=200)
    return text.removesuffix("\n").removesuffix("\n...")


def comment(text: str, meaning: str) -> str:
    return f"{text:{COLUMN}} # {meaning}" if meaning else text
