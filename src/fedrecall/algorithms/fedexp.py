"""FedExP: larger server steps when the clients' updates disagree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from fedrecall.algorithms.base import Algorithm, Finished, LocalSteps, Population, Totals
from fedrecall.config.options import Scale
from fedrecall.core.vector import Tensors


@dataclass(frozen=True)
class FedExP(Algorithm):
    """FedAvg with a larger server step when the clients' updates disagree.

    Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023,
    arXiv 2301.09604.

    D_i = y_i - x; eta = max(1, sum_i p_i |D_i|^2 / (2 (|D|^2 + eps))) with D = sum_i p_i D_i; x <- x + eta D.
    The mean of the last two iterates is evaluated, because single iterates oscillate. The authors' code uses S eps
    for S clients (set `eps` to it), which decays over the rounds, and does not average in round 1.
    """

    eps: Annotated[Scale, "keeps eta finite where the updates cancel"] = 1e-3
    facts: ClassVar[frozenset[str]] = frozenset({"norm2"})

    def init(self, x: Tensor) -> Tensors:
        return {"w": x, "w_before": x}

    def finish(self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors) -> Finished:
        return {"w": y, "norm2": (y.double() - server["w"]).square().sum().reshape(1)}, {}

    def aggregate(self, server: Tensors, sums: Tensors, totals: Totals, population: Population) -> Tensors:
        x = server["w"]
        D = sums["w"] / totals["w"] - x
        eta = (sums["norm2"] / totals["norm2"] / (2 * (D.square().sum() + self.eps))).clamp(min=1)
        return {"w": x + eta * D, "w_before": x}

    def evaluated(self, server: Tensors) -> Tensor:
        return (server["w"] + server["w_before"]) / 2
