"""Plain cross-entropy, the objective that forgets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrecall.objectives.base import Labels, Objective
from fedrecall.vector import Tensors


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Plain cross-entropy: log sum_c exp(f_c) - f_y."""

    def prepare(self, labels: Labels) -> Tensors:
        return {}

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        half = logits.dtype in (torch.float16, torch.bfloat16)
        return F.cross_entropy(logits.float() if half else logits, target)
