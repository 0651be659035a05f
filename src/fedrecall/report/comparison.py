"""Group runs into methods (equal but for the seeds), and methods into settings in which they are comparable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedrecall.config.titles import Titles
from fedrecall.report.line_styles import LineStyle, line_styles
from fedrecall.report.wording import KEY_NAMES, value_text
from fedrecall.runs.identity import identity, tells_methods_apart
from fedrecall.runs.reader import RunRecord, Tree

CONTENT_NAMES = {**KEY_NAMES, "data.digest": "data", "model.structure": "model", "data.classes": "classes"}
OWN = ("algorithm", "objective")  # the sections that define a method within a setting
MADE_OF = "made of "  # prefix of the keys of a run's origin


@dataclass
class Method:
    """The runs of one method in one setting, with its label and look on the page."""

    runs: list[RunRecord]
    repeats: list[RunRecord]  # same seeds as one of `runs`: not counted
    titles: Titles = field(default_factory=Titles)
    label: str = ""
    look: LineStyle = field(default_factory=LineStyle)

    @property
    def recipe(self) -> Tree:
        return self.runs[0].recipe

    @property
    def short(self) -> str:
        """The title without the settings, which the title of a block states."""
        return self.titles.method(self.recipe)

    @property
    def bound(self) -> bool:
        return self.recipe["algorithm"]["name"] in self.titles.bounds

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    @property
    def setting(self) -> str:
        """Key that is equal for comparable methods: recipe and origin without seeds and the sections in `OWN`."""
        flat = {**flatten(origin_key(self.runs[0]), MADE_OF), **flatten(identity(self.recipe))}
        flat = {key: value for key, value in flat.items() if not key.removeprefix(MADE_OF).startswith(OWN)}
        return key_of(flat)

    def values(self, key: str) -> list[float]:
        """Return the value of each run that has it: the summary's or, if unfinished, the mean over its rounds."""
        return list(self.by_seeds(key).values())

    def by_seeds(self, key: str) -> dict[tuple[Any, ...], float]:
        """Return the same values by `RunRecord.seeds`."""
        found = {}
        for run in self.runs:
            value = run.summary.get(key) if run.finished else run.mean(MEANS.get(key, key))
            if value is not None:
                found[run.seeds] = float(value)
        return found

    def mean(self, key: str) -> float:
        """Return the mean over the seeds."""
        return float(np.mean(self.values(key)))

    def curve(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the rounds common to all runs that have the metric, and its values [runs, rounds]."""
        curves = [dict(zip(*run.curve(key))) for run in self.runs]
        curves = [curve for curve in curves if curve]
        if not curves:
            return np.array([], dtype=np.int64), np.empty((0, 0))
        rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
        return np.array(rounds, dtype=np.int64), np.array([[curve[t] for t in rounds] for curve in curves])


MEANS = {
    "final_accuracy": "test_accuracy",
    "final_accuracy_macro": "test_accuracy_macro",
}  # the metric of each round that stands in for a summary's number in an unfinished run


def group_methods(runs: list[RunRecord], titles: Titles) -> list[Method]:
    """Return the methods in the order of the runs, with labels that tell them apart."""
    found: dict[str, Method] = {}
    for run, key in zip(runs, method_keys(runs)):
        method = found.setdefault(key, Method([], [], titles))
        known = {other.seeds for other in method.runs}
        (method.repeats if run.seeds in known else method.runs).append(run)
    methods = list(found.values())
    recipes, origins = [method.recipe for method in methods], [origin_key(method.runs[0]) for method in methods]
    for method, label, look in zip(methods, labels(recipes, titles, origins), line_styles(recipes, titles)):
        method.label, method.look = label, look
    return methods


def method_keys(runs: list[RunRecord]) -> list[str]:
    """Return a key per run, equal for runs whose recipes differ only in seeds and whose origins are the same.

    A run without a recorded origin gets the only origin recorded for its recipe, if there is exactly one.
    """
    recipes = [recipe_key(run.recipe) for run in runs]
    origins = [key_of(flatten(origin_key(run))) for run in runs]
    kinds: dict[str, set[str]] = {}
    for run, recipe, origin in zip(runs, recipes, origins):
        kinds.setdefault(recipe, set()).update([origin] if run.origin else [])
    found = []
    for run, recipe, origin in zip(runs, recipes, origins):
        known = kinds[recipe]
        found.append(recipe + (origin if run.origin else next(iter(known)) if len(known) == 1 else ""))
    return found


def origin_key(run: RunRecord) -> Tree:
    """Return the part of the origin that tells methods of one recipe apart; given weights count as a seed."""
    found = {section: dict(value) for section, value in run.origin.items() if isinstance(value, dict)}
    found.get("model", {}).pop("weights", None)
    if run.recipe["partition"]["name"] != "python":  # the recipe determines the partition
        found.pop("partition", None)
    return found


def key_of(flat: Tree) -> str:
    return json.dumps(
        {key: value for key, value in flat.items() if not is_ignored_key(key)}, sort_keys=True, default=str
    )


def recipe_key(recipe: Tree) -> str:
    """Return a text that is equal for recipes that differ in seeds only."""
    return key_of(flatten(identity(recipe)))


def is_ignored_key(key: str) -> bool:
    return not tells_methods_apart(key.removeprefix(MADE_OF))


def flatten(tree: Tree, prefix: str = "") -> Tree:
    """Return a tree with dotted keys: `{"local.lr": 0.1, ..}`."""
    flat: Tree = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def labels(recipes: list[Tree], titles: Titles, origins: list[Tree] | None = None) -> list[str]:
    """Return the methods' names; namesakes also get the settings (or, if equal, the origins) that differ."""
    names = [titles.method(recipe) for recipe in recipes]
    settings = [flatten(recipe) for recipe in recipes]
    contents = [flatten(origin) for origin in origins] if origins else [{} for _ in recipes]
    found = []
    for at, name in enumerate(names):
        namesakes = [other for other, other_name in enumerate(names) if other_name == name and other != at]
        words = differing_words(settings[at], [settings[other] for other in namesakes])
        same = [contents[other] for other in namesakes if not differing_keys(settings[at], settings[other])]
        words += differing_words(contents[at], same, CONTENT_NAMES)
        found.append(f"{name}, {', '.join(words)}" if words else name)
    return found


def differing_words(flat: Tree, others: list[Tree], names: Mapping[str, str] = KEY_NAMES) -> list[str]:
    """Return in words the keys and values of `flat` that differ from any of the others."""
    keys = {key for other in others for key in differing_keys(flat, other)}
    return [f"{names.get(key, key.rpartition('.')[2])} {value_text(flat[key])}" for key in flat if key in keys]


def differing_keys(flat: Tree, other: Tree) -> list[str]:
    """Return the keys of `flat` that tell methods apart and are different or missing in `other`."""
    return [key for key, value in flat.items() if not is_ignored_key(key) and other.get(key) != value]


def blocks(methods: list[Method]) -> list[list[Method]]:
    """Return the methods grouped by setting; those of one group are comparable."""
    found: dict[str, list[Method]] = {}
    for method in methods:
        found.setdefault(method.setting, []).append(method)
    return list(found.values())


def competitors(block: list[Method], key: str = "final_accuracy") -> list[Method]:
    """Return methods by descending mean, without bounds and methods with unfinished or diverged runs."""
    rivals = [m for m in block if m.finished and not m.bound and not any(r.diverged for r in m.runs)]
    return sorted((m for m in rivals if m.values(key)), key=lambda m: -m.mean(key))


def same_seeds(block: list[Method]) -> bool:
    seeds: list[Any] = [sorted(str(run.seeds) for run in method.runs) for method in block]
    return all(other == seeds[0] for other in seeds)
