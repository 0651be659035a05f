"""Every metric that is a share of samples has its unit, and no other."""

from __future__ import annotations

from fedrecall.measure.metrics import METRICS, SUMMARY
from fedrecall.report.units import PERCENT, POINTS, factor_of, number_format, unit_of

# Counts, sizes, losses and rates.
WITHOUT = {
    *("round", "clients", "lr", "train_loss", "bytes_up", "bytes_down", "flops", "val_nll", "test_nll"),
    *("update_norm", "update_cosine", "final_accuracy_rounds"),
    *("rounds_to_target", "bytes_to_target", "flops_to_target"),
}


def test_every_metric_has_one_unit_or_none() -> None:
    assert not PERCENT & POINTS
    assert {*METRICS, *SUMMARY} - WITHOUT == PERCENT | POINTS


def test_shares_are_shown_in_hundredths() -> None:
    assert (unit_of("test_accuracy"), factor_of("test_accuracy")) == ("%", 100)
    assert (unit_of("forgetting"), factor_of("forgetting")) == ("points", 100)
    assert (unit_of("val_mine"), factor_of("val_mine")) == ("", 1)
    assert number_format("forgetting") == "%{y:+.1f} points"
