"""FedProx: a proximal term keeps the clients near the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedrecall.algorithms.base import Algorithm
from fedrecall.config.options import Rate
from fedrecall.core.vector import Tensors


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg whose clients minimise f_i(y) + mu/2 |y - x|^2.

    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, arXiv 1812.06127.

    g <- g + mu (y - x)
    """

    mu: Annotated[Rate, "strength of the proximal term"] = 1.1

    def correct(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> None:
        g += self.mu * (y - server["w"])
