"""What a run came to."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrecall.recipe.recipe import Recipe

Lines = list[dict[str, Any]]


def summarise(lines: Lines, recipe: Recipe, seconds: float) -> dict[str, Any]:
    """From the lines of metrics. The final accuracy is the mean test accuracy of the last rounds."""

    def measured(key: str, among: Lines = lines) -> list[float]:
        # Of a resumed run, what was not a number is null.
        return [line[key] for line in among if line.get(key) is not None and np.isfinite(line[key])]

    def mean(key: str) -> float | None:
        return float(np.mean(measured(key))) if measured(key) else None

    # A run that was made longer tested other rounds before.
    last = [line for line in lines if line["round"] > recipe.rounds - recipe.tested_rounds]
    tested, validated = measured("test_accuracy", last), measured("val_accuracy")
    return {
        "status": "finished",
        "rounds": recipe.rounds,
        "final_accuracy": float(np.mean(tested)) if tested else None,
        "final_accuracy_sd": float(np.std(tested)) if tested else None,
        "final_accuracy_rounds": len(tested),
        "last_val_accuracy": validated[-1] if validated else None,
        "forgetting": mean("forgetting"),
        "learned": mean("learned"),
        **({} if recipe.evaluation.target is None else to_target(lines, recipe.evaluation.target)),
        "seconds": round(seconds, 3),
    }


def to_target(lines: Lines, target: float) -> dict[str, Any]:
    """Rounds, bytes and local FLOPs until the validation accuracy is first at the target; None if it never is."""
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
