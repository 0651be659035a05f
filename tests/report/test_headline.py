"""The difference comes first, and nothing is called ahead that may be chance."""

from __future__ import annotations

import pytest

from fedrecall.report.headline import NOT_WORSE, headline, tiles

WSM = {"name": "wsm", "tau": 1.0, "smoothing": 0.0}
PLAIN = {"name": "cross_entropy"}


def text(found: str) -> str:
    return found.replace("\u00a0", " ")


def test_a_comparison_leads_with_the_difference(methods) -> None:
    found = methods({"final": 0.5, "scale": 0.4}, {"objective": WSM, "final": 0.586, "scale": 0.1})
    lost = [100 * method.values("forgetting")[0] for method in found]
    said = headline(found)
    assert said.lead == f"WSM: +8.6 points; forgetting {lost[0]:.1f} → {lost[1]:.1f}"
    assert text(said.sentence).startswith(
        "FedAvg + WSM ends at 58.6 % test accuracy, FedAvg with cross-entropy at 50.0 %; a client's training costs"
    )


def test_without_a_test_set_the_forgetting_leads(methods) -> None:
    found = methods({"final": 0.5}, {"objective": WSM, "scale": 0.1})
    for method in found:
        for run in method.runs:
            run.summary["final_accuracy"] = None
    said = headline(found)
    assert said.lead.startswith("WSM: forgetting ")
    assert said.sentence.startswith("A client's training costs the others")


def test_a_small_difference_of_one_seed_may_be_chance(methods) -> None:
    said = headline(methods({"final": 0.5}, {"objective": WSM, "final": 0.501}))
    assert said.lead.startswith("WSM: +0.1 points")
    assert "a difference that may be chance" in said.sentence


def test_the_interval_over_seeds_is_said(methods) -> None:
    # Differences of 8, 10 and 12 points: 10 -+ 4.303 * 2 / sqrt(3) = 10 -+ 4.97.
    runs = [{"seed": s, "final": 0.5} for s in range(3)]
    runs += [{"seed": s, "final": 0.58 + 0.02 * s, "objective": WSM} for s in range(3)]
    assert "(95 % interval over 3 seeds: +5.0 to +15.0 points)" in headline(methods(*runs)).sentence


def test_one_other_is_named_and_two_are_counted(methods) -> None:
    two = methods({"final": 0.5}, {"algorithm": {"name": "scaffold"}, "final": 0.6})
    assert headline(two).lead == "SCAFFOLD: +10.0 points over FedAvg"
    assert headline(two).sentence.startswith("SCAFFOLD is ahead of FedAvg: ")
    three = methods(
        {"seed": 5, "final": 0.5},
        {"seed": 5, "algorithm": {"name": "scaffold"}, "final": 0.6},
        {"seed": 5, "algorithm": {"name": "fednova"}, "final": 0.4},
    )
    assert headline(three).sentence.startswith("SCAFFOLD is ahead of 2 others: ")


def test_a_tenth_of_a_point_is_not_ahead(methods) -> None:
    said = headline(methods({"final": 0.5}, {"algorithm": {"name": "scaffold"}, "final": 0.501})).sentence
    assert "ahead" not in said
    assert said.startswith("SCAFFOLD has the highest final accuracy of 2 methods, +0.1 points above FedAvg, which may")


def test_the_headline_counts_settings_where_there_are_several(methods) -> None:
    rates = [(0.1, PLAIN, 0.5), (0.1, WSM, 0.7), (0.2, PLAIN, 0.5), (0.2, WSM, 0.4)]
    said = headline(methods(*({"local": {"lr": lr}, "objective": o, "final": f} for lr, o, f in rates)))
    assert "in 1 of 2 settings, by \u221210.0 to +20.0 points of accuracy" in said.sentence
    assert said.lead == "WSM: \u221210.0 to +20.0 points"


def test_an_unfinished_run_ends_nowhere(methods) -> None:
    said = headline(methods({"final": 0.5}, {"objective": WSM, "final": 0.9, "finished": False}))
    assert said.lead == ""
    assert "ends at" not in said.sentence
    (alone,) = methods({"rounds": 1, "seed": 3, "finished": False, "forgetting": {"every": 0}})
    assert headline([alone]).sentence == "FedAvg, 1 round."


def test_the_better_value_of_a_card_is_marked_by_its_direction(methods) -> None:
    plain, rival = {"final": 0.5, "scale": 0.4}, {"objective": WSM, "final": 0.6, "scale": 0.1}
    found = methods(*({**each, "seed": seed} for each in (plain, rival) for seed in range(5)))
    marks = {tile.key: [value.better for value in tile.values] for tile in tiles(found)}
    assert marks["final_accuracy"] == [False, True]  # higher
    assert marks["forgetting"] == [False, True]  # lower
    assert marks["learned"] == [False, False]
    hints = {tile.key: tile.hint for tile in tiles(found)}
    assert (hints["final_accuracy"], hints["forgetting"]) == ("higher is better", "lower is better")
    assert hints["learned"] == NOT_WORSE
    assert "not worse" in NOT_WORSE


def test_a_single_run_is_not_called_better(methods) -> None:
    found = methods({"final": 0.5, "scale": 0.4}, {"objective": WSM, "final": 0.9, "scale": 0.1})
    assert not any(value.better for tile in tiles(found) for value in tile.values)


@pytest.mark.parametrize("seeds", [1, 2])
def test_losses_are_not_called_negative_gains(methods, seeds: int) -> None:
    found = methods(*({"objective": o, "seed": s} for o in (PLAIN, WSM) for s in range(seeds)))
    for method, lost, gained in zip(found, (0.098, -0.007), (0.395, -0.0071)):
        for run in method.runs:
            run.summary.update(forgetting=lost, learned=gained)
    said = headline(found).sentence
    assert "costs the others 9.8 points of accuracy with cross-entropy and brings them 0.7 with WSM" in said
    assert said.endswith("while it gains +39.5 and loses 0.7 on its own data.")
    alone = headline(found[1:]).sentence
    assert alone.endswith("brings the others 0.7 points of accuracy and loses 0.7 on its own data.")


@pytest.mark.parametrize("final", [0.5, 0.504])
def test_what_may_be_chance_is_not_marked_as_better(methods, final: float) -> None:
    first = tiles(methods({"final": 0.5}, {"objective": WSM, "final": final}))[0]
    assert [value.better for value in first.values] == [False, False]
