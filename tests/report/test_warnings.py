"""The warnings of the page: each is said once, with its number."""

from __future__ import annotations

from fedrecall.report.warnings import warnings


def test_equal_events_of_many_rounds_are_one_with_a_count(methods) -> None:
    (method,) = methods({"final": 0.5})
    method.runs[0].events[:] = [
        {"round": t, "event": "dropped", "message": "client 3: not finite"} for t in range(2, 20)
    ] + [{"round": 4, "event": "missing", "message": "client 1"}]
    texts = [warning.text for warning in warnings([method])]
    assert "18 times, first in round 2, dropped: client 3: not finite" in texts
    assert "round 4, missing: client 1" in texts
    assert sum("client 3" in text for text in texts) == 1


def test_runs_that_guess_are_counted(methods) -> None:
    found = methods({"seed": 0, "final": 0.1}, {"seed": 1, "final": 0.1}, {"seed": 2, "final": 0.9})
    for run in found[0].runs:
        run.card["classes"] = 10
    (said,) = [warning.text for warning in warnings(found) if "guessing" in warning.text]
    assert said == f"2 of 3 runs ended no better than guessing, {found[0].runs[0].path} the first of them."
    found[0].runs[1].summary["final_accuracy"] = 0.9
    (said,) = [warning.text for warning in warnings(found) if "guessing" in warning.text]
    assert "ended with an accuracy of 10.0" in said
