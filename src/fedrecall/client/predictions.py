"""A model's predictions for pooled samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrecall.client.tasks import EvaluateTask


@dataclass(frozen=True)
class Predictions:
    """A model's predictions, one entry per sample."""

    correct: np.ndarray
    nll: np.ndarray  # the negative log-likelihood of the label
    confidence: np.ndarray  # the probability of the class that the model chose
    logits: np.ndarray | None = None  # if requested

    @classmethod
    def concatenate(cls, parts: Sequence[Predictions]) -> Predictions:
        logits = [part.logits for part in parts if part.logits is not None]
        return cls(
            np.concatenate([part.correct for part in parts]),
            np.concatenate([part.nll for part in parts]),
            np.concatenate([part.confidence for part in parts]),
            np.concatenate(logits) if logits else None,
        )


@dataclass(frozen=True)
class EvaluateResult:
    """The result of an evaluation task."""

    task: EvaluateTask
    predictions: Predictions

    def scalars(self) -> tuple[Any, ...]:
        """Return all fields but the task; an evaluation has no vectors."""
        return (self.predictions,)
