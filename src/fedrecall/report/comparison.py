"""Runs that differ only in their seeds are one method; methods in one setting compare like for like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedrecall.report.looks import Look, looks
from fedrecall.report.wording import KEY_NAMES, in_words
from fedrecall.runs.identity import identity, tells_methods_apart
from fedrecall.runs.reader import RunRecord, Tree
from fedrecall.titles import Titles

CONTENT_NAMES = {**KEY_NAMES, "data.digest": "data", "model.structure": "model", "data.classes": "classes"}
OWN = ("algorithm", "objective")  # the sections that are the method's
MADE_OF = "made of "  # precedes the keys of a run's origin


@dataclass
class Method:
    """The runs of one method in one setting, and how readers tell it from the others of the page."""

    runs: list[RunRecord]
    repeats: list[RunRecord]  # with the seeds of one of `runs`: not counted again
    titles: Titles = field(default_factory=Titles)
    label: str = ""
    look: Look = field(default_factory=Look)

    @property
    def recipe(self) -> Tree:
        return self.runs[0].recipe

    @property
    def short(self) -> str:
        """Without the settings, which a block's title says."""
        return self.titles.method(self.recipe)

    @property
    def bound(self) -> bool:
        return self.recipe["algorithm"]["name"] in self.titles.bounds

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    @property
    def setting(self) -> str:
        """Equal where methods compare like for like: all but the method's own keys."""
        flat = {**flatten(made_of(self.runs[0]), MADE_OF), **flatten(identity(self.recipe))}
        flat = {key: value for key, value in flat.items() if not key.removeprefix(MADE_OF).startswith(OWN)}
        return key_of(flat)

    def values(self, key: str) -> list[float]:
        """A summary's number of each run, or what its lines of metrics say so far."""
        return list(self.by_seeds(key).values())

    def by_seeds(self, key: str) -> dict[tuple[Any, ...], float]:
        """The same, by the seeds of the run and of its partition."""
        found = {}
        for run in self.runs:
            value = run.summary.get(key) if run.finished else run.mean(MEANS.get(key, key))
            if value is not None:
                found[run.seeds] = float(value)
        return found

    def mean(self, key: str) -> float:
        """Over the seeds."""
        return float(np.mean(self.values(key)))

    def curve(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """The rounds at which every run has the metric, and its values [runs, rounds]."""
        curves = [dict(zip(*run.curve(key))) for run in self.runs]
        curves = [curve for curve in curves if curve]
        if not curves:
            return np.array([], dtype=np.int64), np.empty((0, 0))
        rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
        return np.array(rounds, dtype=np.int64), np.array([[curve[t] for t in rounds] for curve in curves])


MEANS = {
    "final_accuracy": "test_accuracy",
    "final_accuracy_macro": "test_accuracy_macro",
}  # of the lines of metrics, for a run without a summary


def group(runs: list[RunRecord], titles: Titles) -> list[Method]:
    """The methods in the order in which they are given, with labels that tell them apart."""
    found: dict[str, Method] = {}
    for run, key in zip(runs, method_keys(runs)):
        method = found.setdefault(key, Method([], [], titles))
        known = {other.seeds for other in method.runs}
        (method.repeats if run.seeds in known else method.runs).append(run)
    methods = list(found.values())
    recipes, origins = [method.recipe for method in methods], [made_of(method.runs[0]) for method in methods]
    for method, label, look in zip(methods, labels(recipes, titles, origins), looks(recipes, titles)):
        method.label, method.look = label, look
    return methods


def method_keys(runs: list[RunRecord]) -> list[str]:
    """Equal for runs of one method: with recipes that differ in seeds only, and made of the same things.

    A run of before origins were written counts as made of the same as the one other kind there is.
    """
    recipes = [recipe_key(run.recipe) for run in runs]
    origins = [key_of(flatten(made_of(run))) for run in runs]
    kinds: dict[str, set[str]] = {}
    for run, recipe, origin in zip(runs, recipes, origins):
        kinds.setdefault(recipe, set()).update([origin] if run.origin else [])
    found = []
    for run, recipe, origin in zip(runs, recipes, origins):
        known = kinds[recipe]
        found.append(recipe + (origin if run.origin else next(iter(known)) if len(known) == 1 else ""))
    return found


def made_of(run: RunRecord) -> Tree:
    """Its origin, as far as it tells a method from others of the same recipe: given weights are as a seed."""
    found = {section: dict(value) for section, value in run.origin.items() if isinstance(value, dict)}
    found.get("model", {}).pop("weights", None)
    if run.recipe["partition"]["name"] != "python":  # then the recipe says it
        found.pop("partition", None)
    return found


def key_of(flat: Tree) -> str:
    return json.dumps(
        {key: value for key, value in flat.items() if not set_aside(key)}, sort_keys=True, default=str
    )


def recipe_key(recipe: Tree) -> str:
    """Return a text that is equal for recipes that differ in seeds only."""
    return key_of(flatten(identity(recipe)))


def set_aside(key: str) -> bool:
    return not tells_methods_apart(key.removeprefix(MADE_OF))


def flatten(tree: Tree, prefix: str = "") -> Tree:
    """`{"local.lr": 0.1, ..}`."""
    flat: Tree = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def labels(recipes: list[Tree], titles: Titles, origins: list[Tree] | None = None) -> list[str]:
    """The methods' names and, where two are the same, the settings in which they differ; if their recipes are the
    same, what they were made of."""
    names = [titles.method(recipe) for recipe in recipes]
    settings = [flatten(recipe) for recipe in recipes]
    contents = [flatten(origin) for origin in origins] if origins else [{} for _ in recipes]
    found = []
    for at, name in enumerate(names):
        namesakes = [other for other, other_name in enumerate(names) if other_name == name and other != at]
        words = differing_words(settings[at], [settings[other] for other in namesakes])
        same = [contents[other] for other in namesakes if not differences(settings[at], settings[other])]
        words += differing_words(contents[at], same, CONTENT_NAMES)
        found.append(f"{name}, {', '.join(words)}" if words else name)
    return found


def differing_words(flat: Tree, others: list[Tree], names: Mapping[str, str] = KEY_NAMES) -> list[str]:
    """The keys and values of `flat` in which it differs from any of the others, in words."""
    keys = {key for other in others for key in differences(flat, other)}
    return [f"{names.get(key, key.rpartition('.')[2])} {in_words(flat[key])}" for key in flat if key in keys]


def differences(flat: Tree, other: Tree) -> list[str]:
    """The keys of `flat` that the other has otherwise, or has not."""
    return [key for key, value in flat.items() if not set_aside(key) and other.get(key) != value]


def blocks(methods: list[Method]) -> list[list[Method]]:
    """Methods that compare like for like, together."""
    found: dict[str, list[Method]] = {}
    for method in methods:
        found.setdefault(method.setting, []).append(method)
    return list(found.values())


def competitors(block: list[Method], key: str = "final_accuracy") -> list[Method]:
    """From the highest mean to the lowest; bounds, unfinished and diverged runs do not compete."""
    rivals = [m for m in block if m.finished and not m.bound and not any(r.diverged for r in m.runs)]
    return sorted((m for m in rivals if m.values(key)), key=lambda m: -m.mean(key))


def same_seeds(block: list[Method]) -> bool:
    seeds: list[Any] = [sorted(str(run.seeds) for run in method.runs) for method in block]
    return all(other == seeds[0] for other in seeds)
