"""FedAdagrad: Adagrad on the server."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedrecall.algorithms.adaptive import Adaptive


@dataclass(frozen=True)
class FedAdagrad(Adaptive):
    """Adagrad on the server.

    Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv 2003.00295.

    v <- v + D^2; x <- x + server_lr D / (sqrt(v) + tau). There is no first moment (beta1 = 0).
    """

    def second_moment(self, v: Tensor, D2: Tensor) -> Tensor:
        return v + D2
