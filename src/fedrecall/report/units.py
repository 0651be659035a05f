"""In which unit a metric is shown: accuracies in percent, their differences in points, all else as it is."""

from __future__ import annotations

PERCENT = frozenset(
    (
        *("val_accuracy", "val_accuracy_mean", "val_accuracy_worst", "val_accuracy_macro", "held_out_accuracy"),
        *("test_accuracy", "test_accuracy_macro", "final_accuracy", "final_accuracy_macro", "last_val_accuracy"),
    )
)
POINTS = frozenset(
    (
        *("val_accuracy_sd", "final_accuracy_sd", "val_ece", "test_ece"),
        *("forgetting", "forgetting_se", "forgetting_global_statistics", "learned"),
        *("forgotten_drops", "forgotten_rises", "forgotten_present", "forgotten_absent"),
        *("lost_by_aggregation", "global_forgetting", "global_forgetting_from_best"),
    )
)
SIGNED = frozenset(
    (
        *("forgetting", "forgetting_global_statistics", "learned", "forgotten_present", "forgotten_absent"),
        *("lost_by_aggregation", "global_forgetting_from_best"),
    )
)


def unit_of(key: str) -> str:
    """`%`, `points`, or nothing where the number is no share of samples (or a user's own).

    >>> unit_of("val_accuracy"), unit_of("forgetting"), unit_of("train_loss")
    ('%', 'points', '')
    """
    return "%" if key in PERCENT else "points" if key in POINTS else ""


def factor_of(key: str) -> float:
    """By what the number in the files is multiplied to be shown."""
    return 100.0 if unit_of(key) else 1.0


def with_unit(title: str, key: str) -> str:
    """`val accuracy, %`."""
    unit = unit_of(key)
    return f"{title}, {unit}" if unit else title


def number_format(key: str) -> str:
    """How a chart shows a number of it, in d3's language, its unit behind."""
    unit = unit_of(key)
    if not unit:
        return "%{y:.4~g}"
    return f"%{{y:{'+' if key in SIGNED else ''}.1f}} {unit}"
