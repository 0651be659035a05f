"""Summary statistics of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrecall.recipe.recipe import Recipe
from fedrecall.runs.jsonl import Lines
from fedrecall.runs.reader import is_number


def summarise(lines: Lines, recipe: Recipe, seconds: float) -> dict[str, Any]:
    """Return the summary of a run's metrics; the final accuracy is the mean over the tested rounds."""
    tested, validated = finite_values("test_accuracy", lines), finite_values("val_accuracy", lines)
    clock = recipe.clock is not None
    return {
        "status": "finished",
        "rounds": recipe.rounds,
        "final_accuracy": mean(tested),
        "final_accuracy_sd": float(np.std(tested)) if tested else None,
        "final_accuracy_rounds": len(tested),
        "final_accuracy_best": max(tested, default=None),
        "final_accuracy_ema_60": moving_average(tested, 0.6),
        "final_accuracy_ema_90": moving_average(tested, 0.9),
        "final_accuracy_macro": mean(finite_values("test_accuracy_macro", lines)),
        "last_val_accuracy": last(validated),
        "forgetting_from_best": last(finite_values("global_forgetting_from_best", lines)),
        "forgetting": mean(finite_values("forgetting", lines)),
        "learned": mean(finite_values("learned", lines)),
        **({"simulated_seconds": total_of("simulated_seconds", lines)} if clock else {}),
        **({} if recipe.evaluation.target is None else to_target(lines, recipe.evaluation.target, clock=clock)),
        "seconds": round(seconds, 3),
    }


def finite_values(key: str, lines: Lines) -> list[float]:
    """Return the finite values of a metric; lines read from a file have null for others."""
    return [line[key] for line in lines if is_number(line.get(key))]


def moving_average(values: list[float], kept: float) -> float | None:
    """Return the exponential moving average at the end, of which each step keeps the share `kept`.

    >>> moving_average([0.0, 1.0, 1.0], 0.5)
    0.75
    """
    average = values[0] if values else None
    for value in values[1:]:
        assert average is not None
        average = kept * average + (1 - kept) * value
    return average


def last(values: list[float]) -> float | None:
    return values[-1] if values else None


def mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def total_of(key: str, lines: Lines) -> float:
    return sum(line.get(key) or 0 for line in lines)


def to_target(lines: Lines, target: float, *, clock: bool = False) -> dict[str, Any]:
    """Return the rounds, bytes, local FLOPs and, with a clock, simulated seconds until the validation accuracy
    reaches the target; None if never."""
    reached = next((at for at, line in enumerate(lines) if (line.get("val_accuracy") or -1.0) >= target), None)
    until = None if reached is None else lines[: reached + 1]

    def total(*keys: str) -> float | None:
        return None if until is None else sum(total_of(key, until) for key in keys)

    simulated = {"simulated_seconds_to_target": total("simulated_seconds")} if clock else {}
    return {
        "target": target,
        "rounds_to_target": None if until is None else until[-1]["round"],
        "bytes_to_target": total("bytes_up", "bytes_down"),
        "flops_to_target": total("flops"),
        **simulated,
    }
