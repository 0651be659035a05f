"""Early stopping and the choice of the kept model, by a metric of the validation data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedrecall.errors import InputError, nearest
from fedrecall.measure.metrics import DECIDING
from fedrecall.recipe.settings import Stop
from fedrecall.runs.reader import is_number


def refuse_unknown_metric(stop: Stop, own: Iterable[str], *, has_validation: bool) -> None:
    """Raise an `InputError` unless the metric is measured on validation data; test data must not decide."""
    known = [*DECIDING, *(f"val_{name}" for name in own)]
    if stop.metric not in known:
        raise InputError(f"stop.metric is {stop.metric!r}, which is not measured; {nearest(stop.metric, known)}")
    if not has_validation:
        raise InputError("stop and keep go by validation data, and partition.validation is 0")


@dataclass
class Best:
    """The best round so far, and the evaluations since."""

    stop: Stop
    round: int = 0
    value: float | None = None
    evaluations_since: int = 0

    def see(self, line: Mapping[str, Any]) -> None:
        """Update from a round's metrics, if it was evaluated. The first of equal values is the best.

        A value that is not finite (null in a file) counts as no improvement.
        """
        if self.stop.metric not in line:
            return
        value = line[self.stop.metric]
        if is_number(value) and (self.value is None or self._better(value, self.value)):
            self.round, self.value, self.evaluations_since = line["round"], value, 0
        else:
            self.evaluations_since += 1

    def _better(self, value: float, than: float) -> bool:
        own = DECIDING.get(self.stop.metric)  # None: a user's metric
        better = self.stop.better or (own and own.better) or "higher"
        return value < than if better == "lower" else value > than

    @property
    def patience_is_over(self) -> bool:
        return self.stop.patience is not None and self.evaluations_since >= self.stop.patience
