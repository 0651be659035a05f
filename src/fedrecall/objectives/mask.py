"""The hard mask: a client's softmax covers its own classes only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedrecall.core.labels import Labels
from fedrecall.core.losses import quick_cross_entropy
from fedrecall.core.vector import Tensors
from fedrecall.objectives.base import Objective


@dataclass(frozen=True)
class Mask(Objective):
    """Cross-entropy over the client's own classes: WSM as tau goes to zero."""

    title: ClassVar[str] = "mask"

    def prepare(self, labels: Labels) -> Tensors:
        return {"log_weight": torch.where(labels.counts > 0, 0.0, -torch.inf)}

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        return quick_cross_entropy(logits, target, client["log_weight"], -client["log_weight"])

    @property
    def mute_on_one_class(self) -> bool:
        return True
