"""Runs that differ in their seeds only are one method, and only what compares like for like competes."""

from __future__ import annotations

import json

import pytest

from fedrecall.recipe.display_titles import titles
from fedrecall.report.ablation import ablations
from fedrecall.report.comparison import blocks, competitors, group_methods
from fedrecall.report.tables import mean_and_deviation
from fedrecall.report.warnings import warnings
from fedrecall.runs.reader import load_run

WSM = {"name": "wsm", "tau": 1.0, "smoothing": 0.0}


def test_seeds_are_one_method_and_have_a_mean_and_a_deviation(methods) -> None:
    found = methods({"seed": 0, "final": 0.5}, {"seed": 1, "final": 0.7}, {"partition": {"seed": 3}, "final": 0.6})
    (method,) = found
    assert method.values("final_accuracy") == [0.5, 0.7, 0.6]
    assert mean_and_deviation([0.5, 0.7, 0.6]) == "60.0 ± 10.0"  # deviations -.1, .1, 0: sqrt(.02 / 2)
    assert mean_and_deviation([0.5]) == "50.0"


def test_where_it_ran_and_what_was_watched_make_no_other_method(methods) -> None:
    assert len(methods({"seed": 0}, {"seed": 1, "execution": {"workers": 2}, "forgetting": {"every": 2}})) == 1


def test_a_run_with_the_same_seeds_is_a_repeat(methods) -> None:
    (method,) = methods({"final": 0.5}, {"final": 0.9})
    assert method.values("final_accuracy") == [0.5]
    assert any("repeat" in warning.text for warning in warnings([method]))


def test_labels_say_in_what_namesakes_differ(methods) -> None:
    found = methods({}, {"local": {"lr": 0.5}}, {"objective": WSM}, {"algorithm": {"name": "scaffold"}})
    assert [m.label for m in found] == ["FedAvg, rate 0.01", "FedAvg, rate 0.5", "FedAvg + WSM", "SCAFFOLD"]


def test_who_competes_is_ranked_among_its_like(methods) -> None:
    found = methods({"final": 0.5}, {"objective": WSM, "final": 0.6}, {"local": {"lr": 0.5}, "final": 0.9})
    first, second = blocks(found)
    assert competitors(first) == [found[1], found[0]]
    assert competitors(second) == [found[2]]  # alone


def test_bounds_and_unfinished_runs_do_not_compete(methods) -> None:
    found = methods(
        {"final": 0.5},
        {"objective": WSM, "final": 0.6},
        {"algorithm": {"name": "centralised"}, "final": 0.9},
        {"algorithm": {"name": "fedprox", "mu": 1.1}, "final": 0.8, "finished": False},
    )
    assert competitors(found) == [found[1], found[0]]
    assert any("its first 8 of 8 rounds" in warning.text for warning in warnings(found))


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


@pytest.mark.parametrize(("count", "said"), [(1, "1 of 6 clients has one class only."), (2, "2 of 6 clients have")])
def test_one_client_has_and_two_have(tmp_path, make_run, count, said) -> None:
    run = make_run(tmp_path / "a")
    card = json.loads((run / "partition.json").read_text())
    card["one_class_clients"]["count"] = count
    (run / "partition.json").write_text(json.dumps(card))
    assert any(warning.text.startswith(said) for warning in warnings(group_methods([load_run(run)], titles())))
