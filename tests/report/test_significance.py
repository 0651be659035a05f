"""P-values against those of a printed table and of integration, and Holm's correction by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedrecall.report.significance import holm, p_text, paired_p, tail

# Two-sided 5 % and 1 % points of Student's t, from a table.
FIVE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 30: 2.042}
ONE = {1: 63.657, 2: 9.925, 3: 5.841, 4: 4.604, 5: 4.032, 9: 3.250, 10: 3.169, 30: 2.750}


@pytest.mark.parametrize(("points", "expected"), [(FIVE, 0.05), (ONE, 0.01)])
def test_tails_are_those_of_the_table(points: dict[int, float], expected: float) -> None:
    for freedom, t in points.items():
        assert tail(t, freedom) == pytest.approx(expected, rel=1e-3), freedom
        assert tail(-t, freedom) == tail(t, freedom)


@pytest.mark.parametrize("freedom", range(1, 12))
def test_tails_are_the_integral_of_the_density(freedom: int) -> None:
    constant = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    x = np.linspace(-1.7, 1.7, 20001)
    inside = np.trapezoid(constant * (1 + x**2 / freedom) ** (-(freedom + 1) / 2), x)
    assert tail(1.7, freedom) == pytest.approx(1 - inside, abs=1e-7)


def test_the_paired_test_by_hand() -> None:
    # .10 .08 .06: mean .08, deviation .02; t is 6.928, and with 2 degrees of freedom p is 1 - t / sqrt(t^2 + 2).
    assert paired_p([0.10, 0.08, 0.06]) == pytest.approx(0.0202, abs=1e-4)
    assert (paired_p([0.1]), paired_p([0.25, 0.25]), paired_p([0.0, 0.0])) == (None, 0.0, 1.0)


def test_holm_by_hand() -> None:
    # 4 x .005, 3 x .01, 2 x .03, 1 x .04 raised to the one before.
    assert holm([0.01, 0.04, None, 0.03, 0.005]) == pytest.approx([0.03, 0.06, None, 0.06, 0.02])
    assert holm([0.7, 0.6]) == [1.0, 1.0]


def test_p_values_as_text() -> None:
    assert [p_text(p) for p in (None, 0.0004, 0.0204, 1.0)] == ["-", "<0.001", "0.020", "1.000"]
