"""FedACG: clients start from a look-ahead along the server's momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedrecall.algorithms.base import Algorithm, Population, Totals
from fedrecall.config.options import Rate
from fedrecall.core.vector import Tensors


@dataclass(frozen=True)
class FedACG(Algorithm):
    """Accelerated client gradient.

    Kim, Kim and Han, "Communication-Efficient Federated Learning with Accelerated Client Gradient", CVPR 2024,
    arXiv 2201.03172.

    Clients are sent z = x + lam m and minimise f_i(y) + beta/2 |y - z|^2.
    m <- lam m + mean(y) - z, x <- x + m; so x is mean(y), and m the step that the server took. The authors average
    clients of equal size without weights; here the mean is weighted by samples.
    """

    lam: Annotated[Rate, "the part of the server's last step that clients are sent ahead"] = 0.85
    beta: Annotated[Rate, "strength of the proximal term"] = 0.001

    def init(self, x: Tensor) -> Tensors:
        return {"w": x, "m": torch.zeros_like(x)}

    def broadcast(self, server: Tensors) -> Tensors:
        return {"w": server["w"] + self.lam * server["m"]}

    def correct(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> None:
        g += self.beta * (y - server["w"])

    def aggregate(self, server: Tensors, sums: Tensors, totals: Totals, population: Population) -> Tensors:
        x = sums["w"] / totals["w"]
        return {"w": x, "m": x - server["w"]}
