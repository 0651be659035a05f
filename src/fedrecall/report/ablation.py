"""Final accuracy against one setting, for methods that differ in that setting only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedrecall.report.comparison import MADE_OF, Method, flatten, key_of, labels, origin_key
from fedrecall.report.intervals import half_interval, sample_deviation
from fedrecall.runs.identity import identity
from fedrecall.runs.reader import Tree


@dataclass
class Series:
    """One method at several values of a setting."""

    label: str
    method: Method  # the first of its methods
    x: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    sd: list[float | None] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    ends: list[tuple[float, float]] = field(default_factory=list)  # the lowest and the highest seed

    def bar(self, at: int, band: str) -> tuple[float, float] | None:
        """Return how far the bar of a value reaches below and above its mean; None for one seed."""
        deviation, mean = self.sd[at], self.mean[at]
        if deviation is None or band == "none":
            return None
        if band == "range":
            return mean - self.ends[at][0], self.ends[at][1] - mean
        half = deviation * (half_interval(self.seeds[at]) if band == "interval" else 1)
        return half, half


@dataclass
class Ablation:
    """The series drawn against one setting."""

    name: str
    title: str
    series: list[Series]

    @property
    def logarithmic(self) -> bool:
        values = [x for series in self.series for x in series.x]
        return min(values) > 0 and max(values) / min(values) >= 20


def _fraction(flat: Tree) -> Any:
    clients, each = flat.get("partition.clients"), flat.get("clients_per_round")
    return flat.get("participation") or (each / clients if clients and each else None)


# Name, title, the keys that may differ, and a function from a flat recipe to the value.
AXES: list[tuple[str, str, tuple[str, ...], Callable[[Tree], Any]]] = [
    ("alpha", "alpha (smaller: more skewed)", ("partition.alpha",), lambda flat: flat.get("partition.alpha")),
    ("fraction", "fraction of clients in a round", ("participation", "clients_per_round"), _fraction),
    ("steps", "local steps", ("local.steps",), lambda flat: flat.get("local.steps")),
    ("epochs", "local epochs", ("local.epochs",), lambda flat: flat.get("local.epochs")),
    ("rate", "local learning rate", ("local.lr",), lambda flat: flat.get("local.lr")),
]


def ablations(methods: list[Method]) -> list[Ablation]:
    """Return an ablation for each setting in which at least two methods differ, and in nothing else."""
    found = []
    for name, title, keys, value in AXES:
        sets: dict[str, list[tuple[float, Method]]] = {}
        for method in methods:
            flat = flatten(identity(method.recipe))
            x = value(flat)
            if isinstance(x, int | float) and method.values("final_accuracy"):
                content = {key: value for key, value in origin_key(method.runs[0]).items() if key != "partition"}
                flat |= flatten(content, MADE_OF)  # partitions given in Python differ in their origin only
                rest = key_of({key: inner for key, inner in flat.items() if key not in keys})
                sets.setdefault(rest, []).append((float(x), method))
        several = [points for points in sets.values() if len({x for x, _ in points}) > 1]
        if several:
            stripped = [_without(points[0][1].recipe, keys) for points in several]
            names = labels(stripped, several[0][0][1].titles)
            series = [_series(label, points) for label, points in zip(names, several)]
            found.append(Ablation(name, title, series))
    return found


def _without(recipe: Tree, keys: tuple[str, ...]) -> Tree:
    found: Tree = {}
    for section, value in recipe.items():
        if isinstance(value, dict):
            found[section] = {key: inner for key, inner in value.items() if f"{section}.{key}" not in keys}
        elif section not in keys:
            found[section] = value
    return found


def _series(label: str, points: list[tuple[float, Method]]) -> Series:
    series = Series(label, points[0][1])
    for x, method in sorted(points, key=lambda point: point[0]):
        values = method.values("final_accuracy")
        series.x.append(x)
        series.mean.append(float(np.mean(values)))
        series.sd.append(sample_deviation(values))
        series.seeds.append(len(values))
        series.ends.append((min(values), max(values)))
    return series
