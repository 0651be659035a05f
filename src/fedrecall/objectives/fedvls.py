"""FedVLS: WSM, distillation on the absent classes, and suppression of the present classes' logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedrecall.config.options import Rate
from fedrecall.core.labels import Labels
from fedrecall.core.losses import log_weights, quick_cross_entropy
from fedrecall.core.vector import Tensors
from fedrecall.objectives.base import TEACHER, Objective, in_full
from fedrecall.objectives.distillation import OUT, distilled


@dataclass(frozen=True)
class FedVLS(Objective):
    """WSM with absent-class distillation and logit suppression.

    Guo et al., "Exploring Vacant Classes in Label-Skewed Federated Learning", AAAI 2025, arXiv 2401.02329.

    WSM + lam KL(global || local) over the absent classes
        + suppress sum_c beta_c log mean exp(f_c - log(C beta_c)),
    the mean over the samples of the batch whose label is not c, the sum over the client's classes. The authors'
    code sets the label's own entries to zero before exp, so that they count as one in a mean over the whole batch,
    and uses log(beta + 1e-9). A single-class client changes the model only through batch norm or dropout.
    """

    lam: Annotated[Rate, "weight of the distillation"] = 0.1
    suppress: Annotated[Rate, "weight of the suppression"] = 0.005

    @property
    def needs(self) -> frozenset[str]:
        return TEACHER

    @property
    def mute_on_one_class(self) -> bool:
        return True  # suppression needs samples of another class, and distillation starts at the teacher

    @property
    def meant_for(self) -> str:
        return "uniform"

    def log_prior(self, pooled: Tensor) -> Tensor:
        return torch.zeros_like(pooled)

    def prepare(self, labels: Labels) -> Tensors:
        log_beta = log_weights(labels.beta)
        present = labels.counts > 0
        return {
            "log_weight": log_beta,
            "present": present,
            "beta": labels.beta,
            "shift": torch.where(present, log_beta + torch.tensor(len(log_beta)).log(), 0.0),
            "classes": torch.arange(len(log_beta)),
        }

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        loss = quick_cross_entropy(logits, target, client["log_weight"], -client["log_weight"])
        loss = loss + self.lam * distilled(logits, teacher, ~client["present"])
        others = (client["classes"] != target[:, None]) & client["present"]
        spread = torch.where(others, in_full(logits) - client["shift"], OUT).logsumexp(0)
        count = others.sum(0)
        # A class that every sample of the batch has contributes no term.
        means = torch.where(count > 0, spread - count.clamp(min=1).log(), 0.0)
        return loss + self.suppress * (client["beta"] * means).sum()
