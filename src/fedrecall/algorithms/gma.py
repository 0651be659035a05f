"""GMA: smaller server steps in coordinates where the clients disagree in sign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedrecall.algorithms.base import Algorithm, Finished, LocalSteps, Population, Totals
from fedrecall.config.options import Rate
from fedrecall.core.vector import Tensors


@dataclass(frozen=True)
class GMA(Algorithm):
    """FedAvg with smaller server steps in coordinates where the clients disagree in sign.

    Tenison et al., "Gradient Masked Averaging for Federated Learning", TMLR 2023, arXiv 2201.11986.

    A = |mean_S sign(y - x)| per coordinate, unweighted; mask = 1 where A >= tau, else A;
    x <- x + server_lr mask * sum_i p_i (y_i - x).
    """

    tau: Annotated[float, Field(ge=0, le=1), "agreement from which on a coordinate moves in full"] = 0.4
    server_lr: Annotated[Rate, "step of the server along the masked update"] = 1.0
    facts: ClassVar[frozenset[str]] = frozenset({"sign"})

    def finish(self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors) -> Finished:
        return {"w": y, "sign": (y - server["w"]).sign().to(torch.int8)}, {}

    def weight(self, name: str, samples: int, steps: int) -> float:
        return 1.0 if name == "sign" else float(samples)

    def aggregate(self, server: Tensors, sums: Tensors, totals: Totals, population: Population) -> Tensors:
        x = server["w"]
        A = (sums["sign"] / totals["sign"]).abs()
        mask = torch.where(self.tau <= A, 1.0, A)
        return {"w": x + self.server_lr * mask * (sums["w"] / totals["w"] - x)}
