"""FedLMD: distillation of the global model on the classes that a client has few samples of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrecall.config.options import Rate, Scale
from fedrecall.core.labels import Labels
from fedrecall.core.vector import Tensors
from fedrecall.objectives.base import NOTHING, TEACHER, Objective, in_full
from fedrecall.objectives.distillation import OUT


@dataclass(frozen=True)
class FedLMD(Objective):
    """Label-masking distillation: cross-entropy + beta T^2 KL(t || f).

    Lu et al., "Federated Learning with Label-Masking Distillation", ACM MM 2023, arXiv 2409.13136.

    t is the teacher's softmax without the client's majority classes and without the label, f the student's without
    the label. With `teacher: uniform` (FedLMD-Tf) t is uniform over the classes that are left. A class is a majority
    class if its share is above 1 / C. Samples for which no class is left have no term; the authors' code subtracts 1000
    from masked logits, so that there it distils from classes that it meant to mask.
    """

    beta: Annotated[Rate, "weight of the distillation"] = 1.0
    temperature: Annotated[Scale, "T of both softmaxes"] = 1.0
    teacher: Annotated[Literal["global", "uniform"], "global: the model that was sent | uniform"] = "global"

    @property
    def needs(self) -> frozenset[str]:
        return TEACHER if self.teacher == "global" else NOTHING

    def prepare(self, labels: Labels) -> Tensors:
        classes = len(labels.counts)
        return {"minor": labels.beta <= 1 / classes, "classes": torch.arange(classes)}

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        others = client["classes"] != target[:, None]
        masked = others & client["minor"]
        scores = torch.zeros_like(in_full(logits)) if teacher is None else in_full(teacher) / self.temperature
        student = torch.where(others, in_full(logits) / self.temperature, OUT).log_softmax(1)
        wanted = torch.where(masked, scores, OUT).log_softmax(1)
        terms = torch.where(masked, wanted.exp() * (wanted - student), 0.0)
        return F.cross_entropy(in_full(logits), target) + self.beta * self.temperature**2 * terms.sum(1).mean()
