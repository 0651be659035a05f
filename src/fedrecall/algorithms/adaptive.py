"""Base of FedAdam, FedYogi and FedAdagrad: a server step scaled by a second moment of the mean update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedrecall.algorithms.base import Algorithm, Population, Totals
from fedrecall.config.options import Rate, Scale
from fedrecall.core.vector import Tensors

Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Adaptive(Algorithm):
    """A server step scaled by a second moment of the mean update.

    Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv 2003.00295.

    D = sum_i p_i (y_i - x); m <- beta1 m + (1 - beta1) D; x <- x + server_lr m / (sqrt(v) + tau). The subclasses
    differ in the update of v, which starts at tau^2. There is no bias correction.
    """

    server_lr: Annotated[Rate, "eta: step of the server"] = 0.01
    tau: Annotated[Scale, "how adaptive the step is: the smaller, the more"] = 1e-3

    def first_moment(self, m: Tensor, D: Tensor) -> Tensor:
        return D

    def second_moment(self, v: Tensor, D2: Tensor) -> Tensor:
        raise NotImplementedError

    def init(self, x: Tensor) -> Tensors:
        return {"w": x, "m": torch.zeros_like(x), "v": torch.full_like(x, self.tau**2)}

    def aggregate(self, server: Tensors, sums: Tensors, totals: Totals, population: Population) -> Tensors:
        x = server["w"]
        D = sums["w"] / totals["w"] - x
        m, v = self.first_moment(server["m"], D), self.second_moment(server["v"].double(), D.square())
        return {"w": x + self.server_lr * m / (v.sqrt() + self.tau), "m": m, "v": v}


@dataclass(frozen=True)
class WithMomentum(Adaptive):
    """The first moment of FedAdam and FedYogi."""

    beta1: Annotated[Share, "how much of the first moment stays"] = 0.9
    beta2: Annotated[Share, "how much of the second moment stays"] = 0.99

    def first_moment(self, m: Tensor, D: Tensor) -> Tensor:
        return self.beta1 * m + (1 - self.beta1) * D
