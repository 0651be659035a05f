"""FedAdam: Adam on the server."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedrecall.algorithms.adaptive import WithMomentum


@dataclass(frozen=True)
class FedAdam(WithMomentum):
    """Adam on the server.

    Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv 2003.00295.

    m <- beta1 m + (1 - beta1) D; v <- beta2 v + (1 - beta2) D^2; x <- x + server_lr m / (sqrt(v) + tau)
    """

    def second_moment(self, v: Tensor, D2: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * D2
