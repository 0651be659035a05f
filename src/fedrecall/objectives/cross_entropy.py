"""Plain cross-entropy, the baseline objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from fedrecall.core.labels import Labels
from fedrecall.core.vector import Tensors
from fedrecall.objectives.base import Objective, in_full


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Plain cross-entropy: log sum_c exp(f_c) - f_y."""

    title: ClassVar[str] = ""  # as in papers, where an algorithm named alone uses cross-entropy
    knows_labels: ClassVar[bool] = False

    def prepare(self, labels: Labels) -> Tensors:
        return {}

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        return F.cross_entropy(in_full(logits), target)
