"""FedLC: logits are calibrated by the client's sample count of each class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor
from torch.nn import functional as F

from fedrecall.config.options import Rate
from fedrecall.core.labels import Labels
from fedrecall.core.vector import Tensors
from fedrecall.objectives.base import Objective, in_full


@dataclass(frozen=True)
class FedLC(Objective):
    """Calibrated logits: cross-entropy of f_c - tau n_c^(-1/4), with absent classes masked (the limit n_c -> 0).

    Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022, arXiv
    2209.00189. With tau = 0 it is plain cross-entropy, absent classes included.
    """

    tau: Annotated[Rate, "strength of the calibration"] = 1.0

    def prepare(self, labels: Labels) -> Tensors:
        margin = labels.counts.float().pow(-0.25)  # inf for absent classes
        return {"margin": self.tau * margin if self.tau else margin.new_zeros(margin.shape)}

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        return F.cross_entropy(in_full(logits) - client["margin"], target)

    @property
    def mute_on_one_class(self) -> bool:
        return self.tau > 0
