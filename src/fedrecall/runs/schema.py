"""What the files of a run must look like for a page to be made of them. A file that does not is named.

Only what the report counts on is looked at: an older run may lack it, and a newer one may have more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedrecall.errors import InputError, short_repr

Test = Callable[[Any], bool]
LARGEST = sys.float_info.max


def number(value: Any) -> bool:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return known and -LARGEST <= value <= LARGEST  # which neither NaN is, nor a whole number that no float holds


def whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def share_or_tree(value: Any) -> bool:
    return number(value) or isinstance(value, dict)


def text(value: Any) -> bool:
    return isinstance(value, str)


def tree(value: Any) -> bool:
    return isinstance(value, dict)


def listing(value: Any) -> bool:
    return isinstance(value, list)


WORDS: dict[Test, str] = {
    number: "a number was expected",
    share_or_tree: "a number was expected",
    whole: "a whole number was expected",
    text: "a word was expected",
    tree: "keys and values were expected",
    listing: "a list was expected",
}

RECIPE: dict[str, Test] = {
    **{f"{section}.name": text for section in ("data", "partition", "model", "objective", "algorithm")},
    **dict.fromkeys(("rounds", "clients_per_round", "seed"), whole),
    "participation": share_or_tree,
    **dict.fromkeys(("local.lr", "local.momentum", "local.weight_decay"), number),
    **dict.fromkeys(("local.epochs", "local.steps", "local.batch_size", "local.schedule.warmup"), whole),
    **dict.fromkeys(("local", "local.schedule", "evaluation"), tree),
    **dict.fromkeys(("batch_norm", "local.schedule.name"), text),
}
# Of our own partitions and models; a user's may call other things by these names.
OWN: dict[str, Test] = {
    **dict.fromkeys(("partition.alpha", "partition.validation"), number),
    **dict.fromkeys(("partition.clients", "partition.held_out", "partition.seed"), whole),
    "model.norm": text,
}
SUMMARY: dict[str, Test] = {
    **dict.fromkeys(("final_accuracy", "final_accuracy_macro", "forgetting", "learned", "seconds"), number),
    "final_accuracy_rounds": whole,
    **dict.fromkeys(("status", "meant_for"), text),
}
ORIGIN: dict[str, Test] = {
    **dict.fromkeys(("data", "partition", "model", "objective", "algorithm"), tree),
    **dict.fromkeys(("data.digest", "model.structure", "model.weights"), text),
    **dict.fromkeys(("model.code", "objective.code", "algorithm.code"), tree),
    "data.sample_shape": listing,
    "data.classes": whole,
    "recipe": text,
}
CARD: dict[str, Test] = {
    **dict.fromkeys(("clients", "classes", "one_class_clients.count"), whole),
    **dict.fromkeys(("one_class_clients", "samples", "validation_size"), tree),
    **dict.fromkeys(("samples.validation", "validation_size.median"), number),
    "class_names": listing,
    "digest": text,
}


def check(path: object, found: Mapping[str, Any], expected: Mapping[str, Test]) -> None:
    """Of the keys that are there and not null, is each what it must be?"""
    for key, test in expected.items():
        value: Any = found
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None and not test(value):
            raise InputError(f"{str(path)!r} is damaged: {key} is {short_repr(value)}; {WORDS[test]}")


def check_recipe(path: object, recipe: Mapping[str, Any]) -> None:
    check(path, recipe, RECIPE)
    for section in ("partition", "model"):
        if ":" not in recipe[section]["name"]:
            check(path, recipe, {key: test for key, test in OWN.items() if key.startswith(section)})


def check_probe(probe: Mapping[str, np.ndarray]) -> None:
    """Accuracies [models, data] and before [data], ids in whole numbers; by class [models, classes]."""
    models, data = probe["models"], probe["data"]
    ids = models.ndim == data.ndim == 1 and models.dtype.kind in "iu" and data.dtype.kind in "iu"
    if not ids or not len(models) or not len(data) or len(set(data.tolist())) < len(data):
        raise InputError("its models and data are not the ids of clients")
    shapes = {"before": (len(data),), "after": (len(models), len(data))}
    if {"class_before", "class_after", "present"} <= set(probe):
        classes = (len(models), *probe["class_before"].shape)
        shapes |= {"class_before": classes[1:2], "class_after": classes, "present": classes}
    for key, shape in shapes.items():
        if probe[key].shape != shape or probe[key].dtype.kind not in "fb" or not sensible(probe[key]):
            raise InputError(f"{key} does not hold accuracies of shape {shape}")


def sensible(accuracies: np.ndarray) -> bool:
    """From 0 to 1, or none."""
    known = accuracies[~np.isnan(accuracies)] if accuracies.dtype.kind == "f" else accuracies
    return not known.size or bool(0 <= known.min() <= known.max() <= 1)


def check_counts(counts: np.ndarray) -> None:
    if counts.ndim != 2 or counts.dtype.kind not in "iu" or not counts.size or counts.min() < 0:
        raise InputError("class_counts are not samples by client and class")
