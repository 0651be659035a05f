"""FedSAM: local steps by the gradient at a nearby point of larger loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from fedrecall.algorithms.base import Algorithm
from fedrecall.config.options import Scale
from fedrecall.core.vector import Tensors


@dataclass(frozen=True)
class FedSAM(Algorithm):
    """FedAvg whose clients take sharpness-aware steps.

    Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", ICML 2022, arXiv 2206.02618;
    Caldarola, Caputo and Ciccone, "Improving Generalization in Federated Learning by Seeking Flat Minima", ECCV 2022,
    arXiv 2203.11834.

    The gradient is taken at y + rho g / |g|, with g the gradient at y, and followed from y. Weight decay is no part of
    g. Batch-norm statistics are those of the pass at y.
    """

    rho: Annotated[Scale, "length of the perturbation"] = 0.05
    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})

    def perturbation(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> Tensor:
        length: Tensor = g.norm()
        return self.rho * g / length.clamp(min=1e-12)
