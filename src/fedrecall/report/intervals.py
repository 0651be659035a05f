"""Student's intervals of differences paired by seeds, to decide whether two methods can be told apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedrecall.report.comparison import Method, competitors

CLAIM = 0.01  # smallest difference worth a claim; with one seed, a smaller one may be chance
# The 97.5 % quantiles of Student's t with 1, 2, .. degrees of freedom, and of the normal distribution.
STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
NORMAL = 1.959964


def student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t with `freedom` degrees of freedom.

    >>> round(student(2), 3), round(student(30), 3)
    (4.303, 2.042)
    """
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    z, n = NORMAL, freedom  # Abramowitz and Stegun, 26.7.5
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / n + second / n**2 + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)


def sample_deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation of a sample; None for fewer than two numbers."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def half_interval(count: int) -> float:
    """Return half of the 95 % interval of the mean of `count` numbers, in standard deviations."""
    return student(count - 1) / math.sqrt(count)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean; None for fewer than two numbers."""
    deviation = sample_deviation(values)
    if deviation is None:
        return None
    half = student(len(values) - 1) * deviation / math.sqrt(len(values))
    mean = float(np.mean(values))
    return mean - half, mean + half


def paired_differences(method: Method, other: Method, key: str) -> list[float]:
    """Return `method` minus `other` for each seed that both have."""
    mine, theirs = method.by_seeds(key), other.by_seeds(key)
    return [mine[seeds] - theirs[seeds] for seeds in mine if seeds in theirs]


def paired_interval(method: Method, other: Method, key: str) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean paired difference; None for fewer than two common seeds."""
    return interval(paired_differences(method, other, key))


def distinguishable(method: Method, other: Method, key: str) -> bool:
    """Whether the paired interval excludes zero; without one, whether the means differ by at least `CLAIM`."""
    found = paired_interval(method, other, key)
    if found is not None:
        return found[0] > 0 or found[1] < 0
    a, b = method.values(key), other.values(key)
    return bool(a and b) and abs(float(np.mean(a)) - float(np.mean(b))) >= CLAIM - 1e-12


def clear_winner(block: list[Method], key: str = "final_accuracy") -> Method | None:
    """Return the method whose paired interval against every other is above zero, or None."""
    found = competitors(block, key)
    if len(found) < 2:
        return None
    first, *others = found
    intervals = [paired_interval(first, other, key) for other in others]
    return first if all(each is not None and each[0] > 0 for each in intervals) else None


def welch_interval(values: Sequence[float], mean: float, sd: float, count: int) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of `values` minus `mean`, whose deviation over `count` seeds is `sd`.

    Welch's degrees of freedom, rounded down. None if either has fewer than two seeds, or neither varies.
    """
    if len(values) < 2 or count < 2:
        return None
    mine, theirs = float(np.var(values, ddof=1)) / len(values), sd**2 / count
    if not mine + theirs:
        return None
    freedom = (mine + theirs) ** 2 / (mine**2 / (len(values) - 1) + theirs**2 / (count - 1))
    half = student(max(1, int(freedom))) * math.sqrt(mine + theirs)
    difference = float(np.mean(values)) - mean
    return difference - half, difference + half
