"""FedCM: local steps follow a mixture of their gradient and the last round's mean direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedrecall.algorithms.base import Algorithm, Finished, LocalSteps, Population, Totals
from fedrecall.core.vector import Tensors


@dataclass(frozen=True)
class FedCM(Algorithm):
    """Client-level momentum.

    Xu et al., "FedCM: Federated Learning with Client-Level Momentum", 2021, arXiv 2106.10874.

    g <- alpha g + (1 - alpha) d, with d the mean of (x - y) / (K lr) over the clients of the last round, zero before
    the first; x <- mean(y), the paper's server step of length lr K. Both means are weighted by samples.
    """

    alpha: Annotated[float, Field(gt=0, le=1), "share of the local gradient in a step"] = 0.1
    divides_by_rate: ClassVar[bool] = True
    assumes_sgd: ClassVar[str | None] = "the server's direction is a mean of gradients"

    def init(self, x: Tensor) -> Tensors:
        return {"w": x, "d": torch.zeros_like(x)}

    def broadcast(self, server: Tensors) -> Tensors:
        return {"w": server["w"], "d": server["d"]}

    def correct(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> None:
        g *= self.alpha
        g += (1 - self.alpha) * server["d"]

    def finish(self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors) -> Finished:
        return {"w": y, "d": (server["w"] - y) / (local.accumulated() * local.lr)}, {}

    def aggregate(self, server: Tensors, sums: Tensors, totals: Totals, population: Population) -> Tensors:
        return {"w": sums["w"] / totals["w"], "d": sums["d"] / totals["d"]}
