"""FedRS: the logits of absent classes are scaled down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedrecall.core.labels import Labels
from fedrecall.core.vector import Tensors
from fedrecall.objectives.base import Objective, in_full


@dataclass(frozen=True)
class FedRS(Objective):
    """The restricted softmax: cross-entropy with the logits of absent classes scaled to alpha f_c.

    Li and Zhan, "FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data", KDD 2021.

    The authors' code scales every class by its share instead of scaling the absent ones alike, and its last layer
    has no bias; here the user chooses the model.
    """

    alpha: Annotated[float, Field(ge=0, le=1), "what the logits of absent classes are scaled by"] = 0.5

    def prepare(self, labels: Labels) -> Tensors:
        return {"scale": torch.where(labels.counts > 0, 1.0, self.alpha)}

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        return F.cross_entropy(in_full(logits) * client["scale"], target)
