"""What the commands print, in words that fit the number."""

from __future__ import annotations

import pytest

from fedrecall.cli.output import final_accuracy, show_results


@pytest.mark.parametrize(
    ("rounds", "said"),
    [(1, "test accuracy of the last round"), (20, "mean test accuracy over the last 20 rounds")],
)
def test_the_final_accuracy_says_over_how_many_rounds(rounds: int, said: str) -> None:
    assert final_accuracy({"final_accuracy_rounds": rounds}) == said


def test_advice_that_several_runs_give_is_printed_once(capsys) -> None:
    summary = {
        "status": "finished", "rounds": 1, "final_accuracy": None, "final_accuracy_sd": None,
        "final_accuracy_rounds": 0, "last_val_accuracy": None, "forgetting": None, "learned": None, "seconds": 1.0,
        "warnings": [], "engine": "serial", "workers": 1,
    }  # fmt: skip
    show_results(
        {"one": summary | {"advice": "do this"}, "other": summary | {"advice": "do this"}}, None, as_json=False
    )
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("note: do this") == 1
