"""User-defined metrics: functions of the global model's logits and the labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedrecall.errors import InputError, short_repr
from fedrecall.measure.metrics import METRICS
from fedrecall.user_code import import_named

# function(logits [n, C] float32, labels [n] int64) -> a number
UserMetric = Callable[[np.ndarray, np.ndarray], float]


def user_metrics(named: Sequence[str], given: Mapping[str, UserMetric] | None = None) -> dict[str, UserMetric]:
    """Return the functions that a recipe names as `module:function` and those given in Python, by name."""
    pairs = list((given or {}).items())
    for text in named:
        if ":" not in text:
            raise InputError(f"evaluation.metrics has {text!r}; 'module:function' was expected")
        pairs.append((text.partition(":")[2], import_named("evaluation.metrics", text)))
    found: dict[str, UserMetric] = {}
    for name, function in pairs:
        if f"val_{name}" in METRICS or name in found:
            raise InputError(f"a metric of your own is named {name!r}, but val_{name} is written already")
        if not callable(function):
            raise InputError(f"the metric {name!r} is {short_repr(function)}; a function was expected")
        found[name] = function
    return found


def evaluate_user_metric(name: str, function: UserMetric, logits: np.ndarray, labels: np.ndarray, round: int) -> float:
    """Return the function's value; an exception in it gets a note of the metric and the round."""
    try:
        value = function(logits, labels)
    except Exception as error:
        error.add_note(f"(in the metric {name!r}, on the validation data of round {round})")
        raise
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(
            f"the metric {name!r} returned {short_repr(value)} in round {round}; a number was expected"
        ) from None
