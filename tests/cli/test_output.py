"""What the commands print, in words that fit the number."""

from __future__ import annotations

import pytest

from fedrecall.cli.output import final_accuracy


@pytest.mark.parametrize(
    ("rounds", "said"),
    [(1, "test accuracy of the last round"), (20, "mean test accuracy over the last 20 rounds")],
)
def test_the_final_accuracy_says_over_how_many_rounds(rounds: int, said: str) -> None:
    assert final_accuracy({"final_accuracy_rounds": rounds}) == said
