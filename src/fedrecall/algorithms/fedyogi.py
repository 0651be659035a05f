"""FedYogi: Yogi on the server."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedrecall.algorithms.adaptive import WithMomentum


@dataclass(frozen=True)
class FedYogi(WithMomentum):
    """Yogi on the server.

    Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv 2003.00295.

    Like FedAdam, but v moves towards D^2 by a step whose size does not depend on v:
    v <- v - (1 - beta2) D^2 sign(v - D^2)
    """

    def second_moment(self, v: Tensor, D2: Tensor) -> Tensor:
        return v - (1 - self.beta2) * D2 * (v - D2).sign()
