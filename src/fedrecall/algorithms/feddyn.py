"""FedDyn: a dynamic regulariser aligns the clients' optima with the server's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedrecall.algorithms.base import Algorithm, Finished, LocalSteps, Population, Totals
from fedrecall.config.options import Scale
from fedrecall.core.vector import Tensors


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """A dynamic regulariser aligns the clients' optima with the server's.

    Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, arXiv 2111.04263.

    g <- g - g_k + alpha (y - x); then g_k <- g_k - alpha (y - x).
    h <- h - alpha / N sum_S (y - x); x <- mean_S(y) - h / alpha. The means are unweighted.
    """

    alpha: Annotated[Scale, "strength of the regulariser"] = 0.01
    assumes_sgd: ClassVar[str | None] = "its linear term is the sum of gradients that plain steps have followed"

    def init(self, x: Tensor) -> Tensors:
        return {"w": x, "h": torch.zeros_like(x)}

    def init_client(self, x: Tensor) -> Tensors:
        return {"g": torch.zeros_like(x)}

    def correct(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> None:
        g -= client["g"]
        g += self.alpha * (y - server["w"])

    def finish(self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors) -> Finished:
        return {"w": y}, {"g": client["g"] - self.alpha * (y - server["w"])}

    def weight(self, name: str, samples: int, steps: int) -> float:
        return 1.0

    def aggregate(self, server: Tensors, sums: Tensors, totals: Totals, population: Population) -> Tensors:
        moved = sums["w"] - totals["w"] * server["w"].double()
        h = server["h"] - self.alpha / population.clients * moved
        return {"w": sums["w"] / totals["w"] - h / self.alpha, "h": h}
