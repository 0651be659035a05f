"""P-values of mean differences paired by seeds, and Holm's correction for several of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedrecall.report.intervals import sample_deviation


def tail(t: float, freedom: int) -> float:
    """Return the two-sided tail of Student's t: the probability of a value at least as far from zero.

    The series are exact for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).

    >>> round(tail(4.303, 2), 4), round(tail(2.262, 9), 4)
    (0.05, 0.05)
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    if odd:
        inside = 2 / math.pi * (angle + sine * total) if freedom > 1 else 2 * angle / math.pi
    else:
        inside = sine * total
    return min(1.0, max(0.0, 1 - inside))


def paired_p(differences: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Student's paired test; None for fewer than two differences."""
    deviation = sample_deviation(differences)
    if deviation is None:
        return None
    mean = float(np.mean(differences))
    if deviation == 0:
        return 1.0 if mean == 0 else 0.0
    return tail(mean / (deviation / math.sqrt(len(differences))), len(differences) - 1)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values corrected by Holm's method (1979); None stays None and does not count.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    known = sorted((value, place) for place, value in enumerate(values) if value is not None)
    found: list[float | None] = [None] * len(values)
    least = 0.0
    for rank, (value, place) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * value))
        found[place] = least
    return found


def p_text(value: float | None) -> str:
    """Return a p-value with three digits, or a hyphen if there is none."""
    if value is None:
        return "-"
    return "<0.001" if value < 0.0005 else f"{value:.3f}"
