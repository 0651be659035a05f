"""FedLESAM: sharpness-aware steps whose perturbation is estimated from the server's last step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedrecall.algorithms.base import Algorithm, Population, Totals
from fedrecall.config.options import Scale
from fedrecall.core.vector import Tensors


@dataclass(frozen=True)
class FedLESAM(Algorithm):
    """FedAvg whose clients perturb along the global update, at the cost of one gradient a step.

    Fan et al., "Locally Estimated Global Perturbations are Better than Local Perturbations for Federated
    Sharpness-aware Minimization", ICML 2024, arXiv 2405.18890.

    The gradient is taken at y + rho (x_before - x) / |x_before - x| and followed from y; in the first round at y. In
    the paper a client remembers the model that it was sent the last time that it took part; here x_before is the
    server's model one round ago, which is sent along. The authors' code divides by the sum of the norms of the tensors.
    """

    rho: Annotated[Scale, "length of the perturbation"] = 0.5

    def init(self, x: Tensor) -> Tensors:
        return {"w": x, "d": torch.zeros_like(x)}

    def broadcast(self, server: Tensors) -> Tensors:
        return {"w": server["w"], "d": server["d"]}

    def perturbation(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> Tensor:
        return self.rho * server["d"]

    def aggregate(self, server: Tensors, sums: Tensors, totals: Totals, population: Population) -> Tensors:
        x = sums["w"] / totals["w"]
        back = server["w"] - x
        return {"w": x, "d": back / back.norm().clamp(min=1e-12)}
