"""FedDecorr: a penalty on correlated features, which keeps them from collapsing into few dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedrecall.config.options import Rate
from fedrecall.core.labels import Labels
from fedrecall.core.vector import Tensors
from fedrecall.objectives.base import FEATURES, Objective, in_full
from fedrecall.objectives.cross_entropy import CrossEntropy
from fedrecall.objectives.wsm import WSM

EPSILON = 1e-8  # added to variances, so that a constant feature correlates with nothing
LOSSES: dict[str, Objective] = {"cross_entropy": CrossEntropy(), "wsm": WSM()}


@dataclass(frozen=True)
class FedDecorr(Objective):
    """A loss + beta / d^2 |corr(g)|_F^2 over the d features g of a batch, the input of the last layer, without the
    diagonal of the correlations, which is constant.

    Shi et al., "Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning",
    ICLR 2023, arXiv 2210.00226.

    The authors' code takes the mean of the squared entries off the diagonal, which divides by d (d - 1). A batch of one
    sample has no correlations and no penalty.
    """

    beta: Annotated[Rate, "weight of the penalty"] = 0.1
    loss: Annotated[Literal["cross_entropy", "wsm"], "the loss that the penalty is added to"] = "cross_entropy"

    @property
    def needs(self) -> frozenset[str]:
        return FEATURES

    @property
    def meant_for(self) -> str:
        return LOSSES[self.loss].meant_for

    def log_prior(self, pooled: Tensor) -> Tensor:
        return LOSSES[self.loss].log_prior(pooled)

    def prepare(self, labels: Labels) -> Tensors:
        return LOSSES[self.loss].prepare(labels)

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        return LOSSES[self.loss](logits, target, client)

    def regulariser(self, features: Tensor) -> Tensor:
        g = in_full(features)
        centred = g - g.mean(0)
        standard = centred / (centred.square().mean(0) + EPSILON).sqrt()
        correlation = standard.T @ standard / len(g)
        off_diagonal = correlation - torch.diag_embed(torch.diagonal(correlation))
        return self.beta * off_diagonal.square().sum() / g.shape[1] ** 2
