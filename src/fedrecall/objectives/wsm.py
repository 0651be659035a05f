"""The re-weighted softmax: a client's absent classes leave the contrast of its loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from fedrecall.errors import InputError
from fedrecall.labels import Labels
from fedrecall.losses import log_weights, quick_cross_entropy
from fedrecall.objectives.base import NOTHING, TEACHER, Objective
from fedrecall.objectives.distillation import distilled
from fedrecall.options import Rate
from fedrecall.vector import Tensors


@dataclass(frozen=True)
class WSM(Objective):
    """The re-weighted softmax: log sum_c beta_c^tau exp(f_c) - f_y.

    Legate, Caccia and Belilovsky, "Re-Weighted Softmax Cross-Entropy to Control Forgetting in Federated Learning",
    2023, arXiv 2304.05260.

    beta is the share of each class in the client's training labels, smoothed to (1 - lam) beta + lam / C.
    """

    remedy: ClassVar[str] = " (objective.smoothing above 0 gives them a gradient)"

    tau: Annotated[float, "strength of the re-weighting; 0 is plain cross-entropy"] = 1.0
    smoothing: Annotated[float, "lam: the share of a uniform distribution mixed into beta"] = 0.0
    distill: Annotated[Rate, "weight of KL(global || local) over the classes that the client lacks"] = 0.0

    def __post_init__(self) -> None:
        if not self.tau >= 0:
            raise InputError(f"objective.tau is {self.tau}; a number of at least 0 was expected")
        if not 0 <= self.smoothing <= 1:
            raise InputError(f"objective.smoothing is {self.smoothing}; a number from 0 to 1 was expected")

    @property
    def needs(self) -> frozenset[str]:
        return TEACHER if self.distill else NOTHING

    def prepare(self, labels: Labels) -> Tensors:
        log_weight = log_weights(labels.beta, self.tau, self.smoothing)
        return {"log_weight": log_weight, "minus_log_weight": -log_weight, "absent": labels.counts == 0}

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        # beta comes from the very labels that are trained on, so each of them has a weight above zero
        loss = quick_cross_entropy(logits, target, client["log_weight"], client["minus_log_weight"])
        if not self.distill:
            return loss
        return loss + self.distill * distilled(logits, teacher, client["absent"])

    @property
    def mute_on_one_class(self) -> bool:
        # Distillation does not help: it starts at the teacher, where its gradient is zero too.
        return self.tau > 0 and not self.smoothing
