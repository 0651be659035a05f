"""FedNova: updates are normalised by the number of local steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedrecall.algorithms.base import Algorithm, Finished, LocalSteps, Population, Totals
from fedrecall.config.options import Rate
from fedrecall.core.vector import Tensors


@dataclass(frozen=True)
class FedNova(Algorithm):
    """FedAvg of updates that are normalised by the number of local steps.

    Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
    NeurIPS 2020, arXiv 2007.07481.

    d_i = (x - y_i) / |a_i|_1; x <- x - tau_eff sum_i p_i d_i with tau_eff = sum_i p_i |a_i|_1.
    With equal sizes and equal steps this is FedAvg; it differs if clients take unequal numbers of steps.
    """

    mu: Annotated[Rate, "strength of a proximal term in the clients' steps, as in FedProx"] = 0.0
    assumes_sgd: ClassVar[str | None] = "it divides updates by the number of equal steps behind them"
    facts: ClassVar[frozenset[str]] = frozenset({"a"})

    def correct(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> None:
        if self.mu:
            g += self.mu * (y - server["w"])

    def finish(self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors) -> Finished:
        a = local.accumulated(self.mu)
        return {"d": (server["w"] - y) / a, "a": torch.tensor([a], dtype=torch.float64)}, {}

    def update(self, sent: Tensors, server: Tensors) -> Tensor:
        return -sent["a"] * sent["d"]

    def aggregate(self, server: Tensors, sums: Tensors, totals: Totals, population: Population) -> Tensors:
        tau_eff = sums["a"] / totals["a"]
        return {"w": server["w"] - tau_eff * sums["d"] / totals["d"]}
