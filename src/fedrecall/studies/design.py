"""The design of a study: settings over a recipe and seeds, from the command line or a YAML file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from fedrecall.config.options import Whole
from fedrecall.errors import InputError, nearest, short_repr
from fedrecall.recipe.files import Tree, read_recipe
from fedrecall.recipe.files import shipped_recipes as recipes
from fedrecall.recipe.settings import Settings
from fedrecall.storage.safe_parsing import yaml_value

MOST_CELLS = 10_000
SHOWN = ("about", "published", "figures", "holm")  # presentation only: these keys do not decide the runs
SIGNS = frozenset(("recipe", "grid", "cases", "seeds"))  # keys of study files that recipes do not have
OPENING, CLOSING, QUOTES, STARTS = "[{", "]}", "\"'", "[{,: "


def numbered(seeds: Any) -> Any:
    """Return a number of seeds as the list 0, 1, .. and anything else unchanged."""
    return list(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds


def dotted(tree: Any) -> Any:
    """Return `{local: {lr: 0.1}}` as `{"local.lr": 0.1}`; groups with a name are not flattened."""
    if not isinstance(tree, dict):
        return tree
    flat: Tree = {}
    for key, value in tree.items():
        inner = isinstance(value, dict) and "name" not in value
        flat |= {f"{key}.{rest}": deep for rest, deep in dotted(value).items()} if inner else {key: value}
    return flat


Flat = Annotated[Tree, BeforeValidator(dotted)]


class Design(Settings):
    """The design of a study: every case with every combination of the grid and every seed."""

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
    holm: bool = Field(default=False, description="p-values are also corrected for all rows by Holm's method")
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
        """Return every key that the design sets."""
        groups = [self.settings, *self.cases, self.grid]
        return list(dict.fromkeys(key for group in groups for key in group))

    def combinations(self) -> list[Tree]:
        """Return the settings of each cell by dotted key, in row order and without duplicates."""
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
        """Return the design as plain values, defaults included."""
        return json.loads(self.model_dump_json())  # type: ignore[no-any-return]


def asked(tree: Tree) -> Tree:
    """Return the part of a study's tree that decides its runs."""
    return {key: value for key, value in tree.items() if key not in SHOWN}


def shipped_studies() -> dict[str, Path]:
    """Return the files of the studies in this package by name."""
    folder = Path(str(resources.files("fedrecall") / "studies" / "shipped"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load_design(source: str, grid: Mapping[str, Sequence[Any]] | None = None, **given: Any) -> Design:
    """Return the design of a study, by name or file, or a new design for a recipe; `grid` updates its grid.

    Other arguments that are not None replace the file's values.
    """
    tree = study_tree(source)
    over = {
        key: list(values) if isinstance(values, Sequence) and not isinstance(values, str) else values
        for key, values in (grid or {}).items()
    }
    merged = {**tree, "grid": {**(tree.get("grid") or {}), **over}}
    return Design(**{**merged, **{key: value for key, value in given.items() if value is not None}})


def study_tree(source: str) -> Tree:
    """Return the content of a study's file with paths relative to the working folder, or `{"recipe": source}`."""
    path = shipped_studies().get(source, Path(source))
    if not path.is_file():
        known = {*recipes(), *shipped_studies()}
        if source not in known and not path.suffix and "/" not in source:
            raise InputError(f"there is no recipe or study {source!r}, by name or as a file; {nearest(source, known)}")
        return {"recipe": source}
    tree = read_recipe(str(path))
    if not SIGNS & set(tree):
        return {"recipe": source}
    for group in (tree, *(case for case in tree.get("cases") or [] if isinstance(case, dict))):
        for key in ("recipe", "published"):
            beside = path.parent / str(group.get(key))
            if isinstance(group.get(key), str) and beside.is_file():
                group[key] = str(beside)
    return tree


def grid_of(words: Iterable[str]) -> dict[str, list[Any]]:
    """Return the values of each key in words such as `local.lr=0.1,0.2`, parsed as YAML.

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


def baseline_of(words: Iterable[str]) -> dict[str, Any]:
    """Return the settings in words such as `algorithm=fedavg,objective=cross_entropy`, one value for each key.

    >>> baseline_of(["algorithm=fedavg,objective=wsm", "model.hidden=[8,8]"])
    {'algorithm': 'fedavg', 'objective': 'wsm', 'model.hidden': [8, 8]}
    """
    grid = grid_of(part.strip() for word in words for part in joined(split_values(word)))
    for key, values in grid.items():
        if len(values) > 1:
            raise InputError(f"--baseline has {len(values)} values of {key}; one was expected")
    return {key: values[0] for key, values in grid.items()}


def joined(parts: Sequence[str]) -> list[str]:
    """Return the parts, with those that have no key as further values of the one before."""
    found: list[str] = []
    for part in parts:
        if found and "=" not in part:
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def split_values(text: str) -> list[str]:
    """Split a text at the commas outside brackets and quotes.

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
            elif sign in QUOTES and (before in ("", sign, *STARTS)):  # an apostrophe within a word is no quote
                quote = sign
            else:
                depth += (sign in OPENING) - (sign in CLOSING)
            parts[-1] += sign
        before = sign
    if any(not part.strip() for part in parts):
        raise InputError("a value between two commas is missing")
    return parts
