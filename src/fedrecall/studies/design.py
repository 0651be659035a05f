"""The design of a study: which settings over which recipe with which seeds, from words or from a YAML file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from fedrecall.errors import InputError, nearest, short_repr
from fedrecall.options import Whole
from fedrecall.recipe.files import Tree, read
from fedrecall.recipe.files import shipped as recipes
from fedrecall.recipe.settings import Settings
from fedrecall.runs.identity import hash_of
from fedrecall.safe_parsing import yaml_value

MOST_CELLS = 10_000
SHOWN = ("about", "published", "figures")  # how a study is shown: no part of what is asked
SIGNS = frozenset(("recipe", "grid", "cases", "seeds"))  # keys of a study's file that no recipe has
OPENING, CLOSING, QUOTES, STARTS = "[{", "]}", "\"'", "[{,: "


def numbered(seeds: Any) -> Any:
    """A number stands for 0, 1, .. up to it."""
    return list(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds


def dotted(tree: Any) -> Any:
    """`{local: {lr: 0.1}}` as `{"local.lr": 0.1}`; what has a name stays together."""
    if not isinstance(tree, dict):
        return tree
    flat: Tree = {}
    for key, value in tree.items():
        inner = isinstance(value, dict) and "name" not in value
        flat |= {f"{key}.{rest}": deep for rest, deep in dotted(value).items()} if inner else {key: value}
    return flat


Flat = Annotated[Tree, BeforeValidator(dotted)]


class Design(Settings):
    """What is asked: every case with every combination of the grid, and each of these with every seed."""

    about: str = Field(default="", description="one line of what it is")
    recipe: str = Field(description="a shipped recipe's name, or a file")
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        default={}, description="keys of the recipe, with the values that each takes"
    )
    cases: list[Flat] = Field(default=[], description="groups of settings, each crossed with the grid")
    seeds: Annotated[list[Whole], Field(min_length=1), BeforeValidator(numbered)] = Field(
        default=[0], description="how many, or which"
    )
    baseline: Flat = Field(default={}, description="the settings of what paired differences are to")
    choose: list[str] = Field(default=[], description="keys of which the best value on validation data is taken")
    settings: Flat = Field(default={}, description="over the recipe in every run")
    published: str = Field(
        default="",
        description="what results are set beside: paper, or a CSV file with accuracy, sd, seeds and keys",
    )
    figures: list[str] = Field(default=[], description="what `reproduce` draws of it")
    same_partition: bool = Field(default=False, description="seeds leave the partition as it is")

    @model_validator(mode="after")
    def _check(self) -> Design:
        if len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds is {short_repr(self.seeds)}; each seed once was expected")
        for key in self.keys():
            if key == "seed":
                raise InputError("seed is among the settings, but a study's seeds are given by --seeds or 'seeds'")
            if key == "execution" or key.startswith("execution."):
                raise InputError(
                    f"{key} is among the settings, but where runs are carried out is not what a study asks"
                )
        for key in self.choose:
            if len(self.grid.get(key, ())) < 2:
                raise InputError(f"choose names {key!r}, of which there are not several values in the grid")
            if key in self.baseline:
                raise InputError(f"the baseline has {key!r}, which is chosen on validation data; name another key")
        return self

    def keys(self) -> list[str]:
        """Every key that the design sets."""
        groups = [self.settings, *self.cases, self.grid]
        return list(dict.fromkeys(key for group in groups for key in group))

    def combinations(self) -> list[Tree]:
        """The settings of each cell, dotted, in the order of rows; what comes out the same is there once."""
        count = max(len(self.cases), 1)
        for values in self.grid.values():
            count *= len(values)
        if count > MOST_CELLS:
            raise InputError(f"the study has {count} combinations of settings; at most {MOST_CELLS} were expected")
        found: dict[str, Tree] = {}
        for case in self.cases or [{}]:
            for chosen in itertools.product(*self.grid.values()):
                settings = {**case, **dict(zip(self.grid, chosen))}
                found.setdefault(json.dumps(settings, sort_keys=True), settings)
        return list(found.values())

    def tree(self) -> Tree:
        """As plain values, every key spelled out."""
        return json.loads(self.model_dump_json())  # type: ignore[no-any-return]

    def digest(self) -> str:
        """The identity of what is asked."""
        return hash_of(asked(self.tree()))


def asked(tree: Tree) -> Tree:
    """Return the part of a study's tree that decides its runs."""
    return {key: value for key, value in tree.items() if key not in SHOWN}


def shipped() -> dict[str, Path]:
    """The studies that come with the package, by name."""
    folder = Path(str(resources.files("fedrecall") / "studies" / "shipped"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_design(source: str, grid: Mapping[str, Sequence[Any]] | None = None, **given: Any) -> Design:
    """The design of a study's name or file, or a new one about a recipe, with this grid over it.

    What else is given, but for None, replaces what a file says.
    """
    tree = study_tree(source)
    over = {
        key: list(values) if isinstance(values, Sequence) and not isinstance(values, str) else values
        for key, values in (grid or {}).items()
    }
    merged = {**tree, "grid": {**(tree.get("grid") or {}), **over}}
    return Design(**{**merged, **{key: value for key, value in given.items() if value is not None}})


def study_tree(source: str) -> Tree:
    """What a study's file says, its recipes' files named from here; of a recipe, only that it is the one."""
    path = shipped().get(source, Path(source))
    if not path.is_file():
        known = {*recipes(), *shipped()}
        if source not in known and not path.suffix and "/" not in source:
            raise InputError(
                f"there is no recipe or study {source!r}, by name or as a file; {nearest(source, known)}"
            )
        return {"recipe": source}
    tree = read(str(path))
    if not SIGNS & set(tree):
        return {"recipe": source}
    for group in (tree, *(case for case in tree.get("cases") or [] if isinstance(case, dict))):
        for key in ("recipe", "published"):
            beside = path.parent / str(group.get(key))
            if isinstance(group.get(key), str) and beside.is_file():
                group[key] = str(beside)
    return tree


def grid_of(words: Iterable[str]) -> dict[str, list[Any]]:
    """`local.lr=0.1,0.2` and the like: a key's values, each YAML.

    >>> grid_of(["objective=wsm,cross_entropy", "model.hidden=[8,8],[16]"])
    {'objective': ['wsm', 'cross_entropy'], 'model.hidden': [[8, 8], [16]]}
    """
    grid: dict[str, list[Any]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise InputError(f"{word!r} is not a setting; key=v1,v2 was expected, as in local.lr=0.05,0.1")
        if key in grid:
            raise InputError(f"{key} is given twice; its values go together, as in {key}=v1,v2")
        try:
            grid[key] = [yaml_value(part) for part in split_values(text)]
        except InputError as error:
            raise InputError(f"{key} is {text!r}, which is not a list of values: {error}") from None
    return grid


def split_values(text: str) -> list[str]:
    """At the commas that are in no bracket and no quotes.

    >>> split_values("a,[b,c],'d,e'")
    ['a', '[b,c]', "'d,e'"]
    """
    parts, depth, quote, before = [""], 0, "", ""
    for sign in text:
        if sign == "," and depth == 0 and not quote:
            parts.append("")
        else:
            if quote:
                quote = "" if sign == quote else quote
            elif sign in QUOTES and (before in ("", sign, *STARTS)):  # an apostrophe within a word is none
                quote = sign
            else:
                depth += (sign in OPENING) - (sign in CLOSING)
            parts[-1] += sign
        before = sign
    if any(not part.strip() for part in parts):
        raise InputError("a value between two commas is missing")
    return parts
