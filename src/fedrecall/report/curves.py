"""Metrics over the rounds: the mean over a method's seeds with a band, thinned for display."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrecall.report.comparison import Method
from fedrecall.report.intervals import half_interval

LAST = 100  # points at the end that are never thinned: the final accuracy is computed from them
MOST = 300  # points before those


@dataclass
class Curve:
    """A metric of one method: its mean over the seeds, and a band around it for several seeds."""

    rounds: np.ndarray
    mean: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    seeds: int


def curve(method: Method, key: str, band: str = "deviation") -> Curve | None:
    """Return the curve of a metric, or None if the method has not measured it.

    `band` is one standard deviation, the 95 % interval of the mean, the range, or none.
    """
    rounds, values = method.curve(key)
    if not len(rounds):
        return None
    mean = values.mean(axis=0)
    count = len(values)
    if count == 1 or band == "none":
        return Curve(rounds, mean, None, None, count)
    if band == "range":
        return Curve(rounds, mean, values.min(axis=0), values.max(axis=0), count)
    half = values.std(axis=0, ddof=1) * (half_interval(count) if band == "interval" else 1)
    return Curve(rounds, mean, mean - half, mean + half, count)


def thinned(drawn: Curve, most: int = MOST, last: int = LAST) -> Curve:
    """Return a curve with all of the last points, and before them the minimum and maximum of each stretch.

    Keeping both extremes preserves spikes, which taking every n-th point would lose.
    """
    kept = kept_points(drawn.mean, most, last)
    low = None if drawn.low is None else drawn.low[kept]
    high = None if drawn.high is None else drawn.high[kept]
    return Curve(drawn.rounds[kept], drawn.mean[kept], low, high, drawn.seeds)


def kept_points(values: np.ndarray, most: int = MOST, last: int = LAST) -> np.ndarray:
    """Return the sorted indices of the points to keep.

    >>> kept_points(np.array([0.0, 1, 9, 1, 0, 1, 1, 1]), most=4, last=2).tolist()
    [0, 2, 3, 4, 6, 7]
    """
    first = len(values) - last
    if first <= most:
        return np.arange(len(values))
    kept = {0, *range(first, len(values))}
    for stretch in np.array_split(np.arange(first), max(most // 2, 1)):
        kept |= {int(stretch[values[stretch].argmin()]), int(stretch[values[stretch].argmax()])}
    return np.array(sorted(kept))


def measured_metrics(methods: list[Method]) -> list[str]:
    """Return the metrics that any of the runs has measured, in order of first appearance."""
    found: dict[str, None] = {}
    for method in methods:
        for run in method.runs:
            for line in run.metrics:
                found.update(dict.fromkeys(line))
    return [key for key in found if key not in ("round", "clients")]
