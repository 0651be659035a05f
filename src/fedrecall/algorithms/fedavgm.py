"""FedAvgM: momentum on the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedrecall.algorithms.base import Algorithm, Population, Totals
from fedrecall.config.options import Rate
from fedrecall.core.vector import Tensors


@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """FedAvg with momentum on the server.

    Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", 2019, arXiv 1909.06335.

    D = sum_i p_i (y_i - x); m <- beta m + D; x <- x + server_lr m
    """

    server_lr: Annotated[Rate, "eta: step of the server along m"] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1), "beta: how much of m stays"] = 0.9

    def init(self, x: Tensor) -> Tensors:
        return {"w": x, "m": torch.zeros_like(x)}

    def aggregate(self, server: Tensors, sums: Tensors, totals: Totals, population: Population) -> Tensors:
        x = server["w"]
        m = self.momentum * server["m"] + (sums["w"] / totals["w"] - x)
        return {"w": x + self.server_lr * m, "m": m}
