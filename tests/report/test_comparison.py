"""Runs that differ in their seeds only are one method, and only what compares like for like competes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedrecall.recipe.names import titles
from fedrecall.report.ablation import ablations
from fedrecall.report.comparison import Method, best, blocks, group
from fedrecall.report.headline import headline
from fedrecall.report.tables import mean_and_deviation, result_table
from fedrecall.report.warnings import warnings
from fedrecall.runs.reader import load

WSM = {"name": "wsm", "tau": 1.0, "smoothing": 0.0}


@pytest.fixture
def methods(tmp_path: Path, make_run: Callable[..., Path]) -> Callable[..., list[Method]]:
    """The methods of runs that are given as keywords of `make_run`."""

    def grouped(*runs: dict) -> list[Method]:
        return group([load(make_run(tmp_path / str(n), **run)) for n, run in enumerate(runs)], titles())

    return grouped


def test_seeds_are_one_method_and_have_a_mean_and_a_deviation(methods) -> None:
    found = methods({"seed": 0, "final": 0.5}, {"seed": 1, "final": 0.7}, {"partition": {"seed": 3}, "final": 0.6})
    (method,) = found
    assert method.values("final_accuracy") == [0.5, 0.7, 0.6]
    assert mean_and_deviation([0.5, 0.7, 0.6]) == "0.600 ± 0.100"  # deviations -.1, .1, 0: sqrt(.02 / 2)
    assert mean_and_deviation([0.5]) == "0.500"


def test_where_it_ran_and_what_was_watched_make_no_other_method(methods) -> None:
    assert len(methods({"seed": 0}, {"seed": 1, "execution": {"workers": 2}, "forgetting": {"every": 2}})) == 1


def test_a_run_with_the_same_seeds_is_a_repeat(methods) -> None:
    (method,) = methods({"final": 0.5}, {"final": 0.9})
    assert method.values("final_accuracy") == [0.5]
    assert any("repeat" in warning.text for warning in warnings([method]))


def test_labels_say_in_what_namesakes_differ(methods) -> None:
    found = methods({}, {"local": {"lr": 0.5}}, {"objective": WSM}, {"algorithm": {"name": "scaffold"}})
    assert [m.label for m in found] == ["FedAvg, rate 0.01", "FedAvg, rate 0.5", "FedAvg + WSM", "SCAFFOLD"]


def test_the_best_is_among_its_like(methods) -> None:
    found = methods({"final": 0.5}, {"objective": WSM, "final": 0.6}, {"local": {"lr": 0.5}, "final": 0.9})
    first, second = blocks(found)
    assert best(first) is found[1]
    assert best(second) is None  # alone
    marked = [
        [cell.best for cell in row.cells].count(True) for block in result_table(found).blocks for row in block.rows
    ]
    assert marked == [0, 1, 0]


def test_bounds_and_unfinished_runs_do_not_compete(methods) -> None:
    found = methods(
        {"final": 0.5},
        {"objective": WSM, "final": 0.6},
        {"algorithm": {"name": "centralised"}, "final": 0.9},
        {"algorithm": {"name": "fedprox", "mu": 1.1}, "final": 0.8, "finished": False},
    )
    assert best(found) is found[1]
    assert any("its first 8 of 8 rounds" in warning.text for warning in warnings(found))


def test_the_headline_compares_with_cross_entropy(methods) -> None:
    text = headline(methods({"final": 0.5}, {"objective": WSM, "final": 0.6})).replace("\u00a0", " ")
    assert text.startswith("FedAvg + WSM ends at 60.0 % test accuracy, FedAvg with cross-entropy at 50.0 %")


def test_the_headline_counts_settings_where_there_are_several(methods) -> None:
    runs = [{"local": {"lr": lr}, "objective": o, "final": f} for lr, o, f in RATES]
    text = headline(methods(*runs))
    assert "in 1 of 2 settings, by \u221210.0 to +20.0 points of accuracy" in text


RATES = [
    (0.1, {"name": "cross_entropy"}, 0.5),
    (0.1, WSM, 0.7),
    (0.2, {"name": "cross_entropy"}, 0.5),
    (0.2, WSM, 0.4),
]


def test_an_ablation_is_over_runs_that_differ_in_one_setting(methods) -> None:
    found = methods(
        *(
            {"partition": {"alpha": alpha}, "objective": o, "final": alpha}
            for alpha in (0.1, 0.5)
            for o in (WSM, {"name": "mask"})
        ),
        {"partition": {"alpha": 0.9}, "local": {"lr": 0.7}},
    )
    (ablation,) = ablations(found)
    assert (ablation.name, [series.label for series in ablation.series]) == (
        "alpha",
        ["FedAvg + WSM", "FedAvg + mask"],
    )
    assert ablation.series[0].x == ablation.series[0].mean == [0.1, 0.5]


def test_fractions_compare_however_they_are_given(methods) -> None:
    found = methods({"clients_per_round": 3}, {"clients_per_round": 6})
    (ablation,) = ablations(found)
    assert ablation.series[0].x == [0.5, 1.0]
    assert not ablation.logarithmic


def test_warnings_name_what_is_wrong(methods) -> None:
    found = methods({"final": 0.25}, {"objective": WSM, "final": 0.9})
    texts = [warning.text for warning in warnings(found)]
    assert any("no better than guessing" in text for text in texts)  # four classes
    assert any("Too few validation samples for a 1 % claim" in text for text in texts)
    assert any("One seed each" in text for text in texts)
    assert not any("one class only" in text for text in texts)


def test_the_width_of_what_validation_samples_tell(methods) -> None:
    (text,) = [w.text for w in warnings(methods({"final": 0.5})) if "1 %" in w.text]
    assert "with 300 in all" in text
    assert "±5.7 points" in text  # 1.96 sqrt(.25 / 300) = .0566
