"""Merge the layers of a recipe: the defaults, a file and its bases, a preset, overrides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedrecall.errors import InputError, nearest, short_repr
from fedrecall.recipe.files import Tree, with_bases
from fedrecall.recipe.presets import PRESETS
from fedrecall.recipe.recipe import SECTIONS, Recipe
from fedrecall.recipe.settings import CheckpointTimes, Forgetting, Local, name_or_group
from fedrecall.storage.safe_parsing import yaml_value


def load_recipe(source: str | None, overrides: Iterable[str] = (), extra: Tree | None = None) -> Recipe:
    """Return the recipe of a shipped name or a YAML file, with `key=value` overrides, then `extra`, over it."""
    return Recipe(**layered(with_bases(source) if source else [], overrides, extra))


def layered(trees: Sequence[Tree], overrides: Iterable[str] = (), extra: Tree | None = None) -> Tree:
    """Return all layers as one tree, without importing what it names."""
    words = from_words(overrides)
    if "base" in words:
        raise InputError("base is given as a setting, but it is a key of a recipe's file only")
    return merged(with_preset([*trees, words, extra or {}]))


def from_layers(layers: Sequence[Tree]) -> Recipe:
    """Return the recipe of layers, each over the one before."""
    return Recipe(**merged(with_preset(layers)))


def merged(layers: Iterable[Tree]) -> Tree:
    result: Tree = {section: Recipe.model_fields[section].default for section in SECTIONS}
    for layer in layers:
        below = with_long_participation(result, layer)
        result = merge(without_the_others(below, layer), layer)
    return result


def with_long_participation(below: Tree, above: Tree) -> Tree:
    """Return `below` with its number of clients in the long form, if `above` only adds options to it."""
    added = above.get("participation")
    if not isinstance(added, dict) or not {"name", "fraction", "clients"}.isdisjoint(added):
        return below
    for key, option in (("participation", "fraction"), ("clients_per_round", "clients")):
        if isinstance(below.get(key), int | float):
            return {**without_key(below, [key]), "participation": {"name": "uniform", option: below[key]}}
    return below


def with_preset(layers: Sequence[Tree]) -> list[Tree]:
    """Return the layers with the preset that the highest of them names, inserted right below that layer."""
    plain = [{key: value for key, value in layer.items() if key != "preset"} for layer in layers]
    highest, preset = 0, None
    for place, layer in enumerate(layers):
        if "preset" in layer:
            highest, preset = place, layer["preset"]
            if preset is not None and (not isinstance(preset, str) or preset not in PRESETS):
                raise InputError(f"preset is {short_repr(preset)}, which is not known; {nearest(str(preset), PRESETS)}")
    switches = PRESETS[preset](merged(plain)) if preset is not None else {}
    return [*plain[:highest], switches, *plain[highest:]]


def from_words(words: Iterable[str]) -> Tree:
    """Return overrides such as `local.lr=0.05` as a tree; values are YAML."""
    tree: Tree = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise InputError(f"{word!r} is not a setting; key=value was expected, as in local.lr=0.05")
        try:
            value = yaml_value(text)
        except InputError as error:
            raise InputError(f"{key} is {text!r}, which is not a value: {error}") from None
        set_value(tree, key.split("."), value, key)
    return tree


def set_value(tree: Tree, path: list[str], value: Any, key: str) -> None:
    for part in path[:-1]:
        inner = tree.setdefault(part, {})
        if isinstance(inner, str):  # objective=wsm objective.tau=0.5
            inner = tree[part] = {"name": inner}
        if not isinstance(inner, dict):
            raise InputError(f"{key} is given, but {part} is given as a value too")
        tree = inner
    last = path[-1]
    if isinstance(tree.get(last), dict) and isinstance(value, str):  # objective.tau=0.5 objective=wsm
        value = {**tree[last], "name": value}
    tree[last] = value


def merge(below: Tree, above: Tree) -> Tree:
    """Return `above` merged over `below`; another name drops the options of the one below."""
    result = dict(below)
    for key, value in above.items():
        result[key] = overlay(result.get(key), value)
    return result


def overlay(below: Any, above: Any) -> Any:
    if isinstance(below, dict):
        above = name_or_group(above)
    if isinstance(above, dict):
        below = name_or_group(below)
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    renamed = "name" in above and above["name"] != below.get("name")
    return above if renamed else merge(below, above)


def without_the_others(below: Tree, above: Tree) -> Tree:
    """Return `below` without the keys that a key of `above` excludes."""
    for group in (Recipe, Local, Forgetting, CheckpointTimes):
        pair = [f"{group.section}.{key}".removeprefix(".") for key in group.exclusive]
        for given, other in (pair, pair[::-1]):
            if look_up(above, given) is not None and look_up(above, other) is None:
                below = without_key(below, other.split("."))
    return below


def without_key(tree: Tree, path: list[str]) -> Tree:
    inner = tree.get(path[0])
    if len(path) > 1 and isinstance(inner, dict):
        return {**tree, path[0]: without_key(inner, path[1:])}
    return {key: value for key, value in tree.items() if len(path) > 1 or key != path[0]}


def look_up(tree: Tree, key: str) -> Any:
    inner: Any = tree
    for part in key.split("."):
        inner = inner.get(part) if isinstance(inner, dict) else None
    return inner
