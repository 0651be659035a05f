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
    return {
        "status": "finished",
        "rounds": recipe.rounds,
        "final_accuracy": mean(tested),
        "final_accuracy_sd": float(np.std(tested)) if tested else None,
        "final_accuracy_rounds": len(tested),
        "final_accuracy_macro": mean(finite_values("test_accuracy_macro", lines)),
        "last_val_accuracy": validated[-1] if validated else None,
        "forgetting": mean(finite_values("forgetting", lines)),
        "learned": mean(finite_values("learned", lines)),
        **({} if recipe.evaluation.target is None else to_target(lines, recipe.evaluation.target)),
        "seconds": round(seconds, 3),
    }


def finite_values(key: str, lines: Lines) -> list[float]:
    """Return the finite values of a metric; lines read from a file have null for others."""
    return [line[key] for line in lines if is_number(line.get(key))]


def mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def to_target(lines: Lines, target: float) -> dict[str, Any]:
    """Return the rounds, bytes and local FLOPs until the validation accuracy reaches the target; None if never."""
    reached = next((at for at, line in enumerate(lines) if (line.get("val_accuracy") or -1.0) >= target), None)
    until = None if reached is None else lines[: reached + 1]

    def total(*keys: str) -> int | None:
        return None if until is None else sum(line.get(key, 0) for line in until for key in keys)

    return {
        "target": target,
        "rounds_to_target": None if until is None else until[-1]["round"],
        "bytes_to_target": total("bytes_up", "bytes_down"),
        "flops_to_target": total("flops"),
    }
