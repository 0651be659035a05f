"""FedNTD: distillation of the global model on the classes other than the label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrecall.config.options import Rate, Scale
from fedrecall.core.labels import Labels
from fedrecall.core.vector import Tensors
from fedrecall.objectives.base import TEACHER, Objective, in_full
from fedrecall.objectives.distillation import distilled


@dataclass(frozen=True)
class FedNTD(Objective):
    """Not-true distillation: cross-entropy + beta T^2 KL(global || local) over the classes other than y.

    Lee et al., "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning", NeurIPS
    2022, arXiv 2106.03097.
    """

    beta: Annotated[Rate, "weight of the distillation"] = 1.0
    temperature: Annotated[Scale, "T of both softmaxes"] = 1.0

    @property
    def needs(self) -> frozenset[str]:
        return TEACHER

    def prepare(self, labels: Labels) -> Tensors:
        return {"classes": torch.arange(len(labels.counts))}

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        not_true = client["classes"] != target[:, None]
        kept = distilled(logits, teacher, not_true, self.temperature)
        return F.cross_entropy(in_full(logits), target) + self.beta * self.temperature**2 * kept
