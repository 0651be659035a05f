"""The contents of an app's folder that server and clients read: the recipe and the kind of the samples."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrecall.errors import InputError, short_repr
from fedrecall.flower.node import Config
from fedrecall.flower.samples import SampleKind
from fedrecall.recipe.layers import load_recipe
from fedrecall.recipe.recipe import Recipe

RECIPE = "recipe.yaml"
# Nodes keep two versions of a client's state; with a checkpoint every round, these are the last two checkpoints'.
EVERY_ROUND = {"checkpoint": {"every": 1}}


@dataclass(frozen=True)
class App:
    """The recipe to run on a federation, and the app's own settings (`[tool.flwr.app.config]`)."""

    recipe: Recipe
    kind: SampleKind
    config: Config

    @classmethod
    def of(cls, folder: Path, config: Config) -> App:
        try:
            words = shlex.split(str(config.get("settings", "")))
        except ValueError as error:
            raise InputError(f"settings is {short_repr(config['settings'])}: {error}") from None
        recipe = load_recipe(str(folder / RECIPE), words, EVERY_ROUND)
        return cls(recipe, SampleKind.read(folder), config)

    def get(self, key: str, kind: type, default: Any) -> Any:
        """Return one of the app's settings; raise an `InputError` for a wrong type. A float may be an int."""
        value = self.config.get(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and kind is float:
            value = float(value)
        if type(value) is not kind:
            raise InputError(f"{key} is {short_repr(value)} in the app's configuration; {WORDS[kind]} was expected")
        return value


WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
