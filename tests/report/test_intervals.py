"""The paired interval over seeds, and the star that stands on it. Student's points are from printed tables."""

from __future__ import annotations

import pytest

from fedrecall.report.intervals import clear_winner, interval, paired_interval, student
from fedrecall.report.tables import result_table

WSM = {"name": "wsm", "tau": 1.0, "smoothing": 0.0}


@pytest.mark.parametrize(("freedom", "point"), [(1, 12.706), (4, 2.776), (11, 2.201), (20, 2.086), (120, 1.980)])
def test_students_points_are_those_of_the_tables(freedom: int, point: float) -> None:
    assert student(freedom) == pytest.approx(point, abs=6e-4)


def test_the_interval_of_three_numbers() -> None:
    # mean 2, deviation 1, sqrt 3: 2 -+ 4.3027 / 1.73205
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 2.4842, 2 + 2.4842), abs=1e-3)
    assert interval([1.0]) is None


def two(methods, plain: list[float], wsm: list[float], first: int = 0):
    runs = [{"seed": s, "final": f} for s, f in enumerate(plain)]
    return methods(*runs, *({"seed": s, "final": f, "objective": WSM} for s, f in enumerate(wsm, start=first)))


def stars(found) -> list[bool]:
    table = result_table(found)
    return [any(cell.best for cell in row.cells) for block in table.blocks for row in block.rows]


def test_seeds_are_paired(methods) -> None:
    # The seeds differ by tens of points, the methods by two at each seed.
    found = two(methods, [0.3, 0.5, 0.7], [0.32, 0.52, 0.72])
    low, high = paired_interval(found[1], found[0], "final_accuracy") or (0, 0)
    assert low == pytest.approx(0.02)
    assert high == pytest.approx(0.02)
    assert stars(found) == [False, True]


def test_one_seed_has_no_star(methods) -> None:
    found = two(methods, [0.3], [0.9])
    assert clear_winner(found) is None
    assert stars(found) == [False, False]
    assert result_table(found).star.startswith("No star for the best: one seed each")


def test_an_interval_with_zero_in_it_has_no_star(methods) -> None:
    found = two(methods, [0.5, 0.5, 0.5], [0.4, 0.6, 0.8])  # -10, 10 and 30 points
    assert stars(found) == [False, False]
    assert "no paired 95 % interval over seeds excludes zero" in result_table(found).star


def test_other_seeds_do_not_pair(methods) -> None:
    assert stars(two(methods, [0.3, 0.31], [0.8, 0.81], first=5)) == [False, False]
