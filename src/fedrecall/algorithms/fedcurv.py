"""FedCurv: a penalty weighted by the other clients' Fisher information."""

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
class FedCurv(Algorithm):
    """FedAvg with a penalty weighted by the other clients' Fisher information.

    Shoham et al., "Overcoming Forgetting in Federated Learning on Non-IID Data", 2019, arXiv 1910.07796.

    g <- g + 2 lam [(U - u_i) y - (V - v_i)], the gradient of lam sum_{j != i} u_j (y - y_j)^2, where u_j is the
    diagonal of client j's Fisher information and v_j = u_j y_j; U and V are their sums. All start at zero.
    """

    lam: Annotated[Rate, Field(le=1e38), "strength of the others' curvature"] = 0.01
    needs: ClassVar[frozenset[str]] = frozenset({"fisher"})

    def init(self, x: Tensor) -> Tensors:
        return {"w": x, "U": torch.zeros_like(x), "V": torch.zeros_like(x)}

    def init_client(self, x: Tensor) -> Tensors:
        return {"u": torch.zeros_like(x), "v": torch.zeros_like(x)}

    def broadcast(self, server: Tensors) -> Tensors:
        return server

    def correct(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> None:
        g += 2 * self.lam * ((server["U"] - client["u"]) * y - (server["V"] - client["v"]))

    def finish(self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors) -> Finished:
        u = extra["fisher"]
        v = u * y
        return {"w": y, "du": u - client["u"], "dv": v - client["v"]}, {"u": u, "v": v}

    def weight(self, name: str, samples: int, steps: int) -> float:
        return float(samples) if name == "w" else 1.0

    def aggregate(self, server: Tensors, sums: Tensors, totals: Totals, population: Population) -> Tensors:
        U, V = server["U"] + sums["du"], server["V"] + sums["dv"]
        return {"w": sums["w"] / totals["w"], "U": U, "V": V}
