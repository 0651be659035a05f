"""Ditto: a model of its own for each client, pulled towards the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from fedrecall.algorithms.base import Algorithm, Finished, LocalSteps
from fedrecall.config.options import Rate
from fedrecall.core.vector import Tensors


@dataclass(frozen=True)
class Ditto(Algorithm):
    """FedAvg, beside which each client trains a model v of its own: v <- v - lr (grad f_i(v) + lam (v - x)).

    Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021, arXiv 2012.04221.
    Two orders are in use: a step of v after each step of y, or all steps of v after those of y. Here it is the second.
    v is pulled to the model x that the client was sent and takes as many steps as y on the same batches, so that the
    first gives the same v, but for random draws of the model. v starts from the x of the client's first round.
    """

    lam: Annotated[Rate, "strength of the pull of a client's own model towards the global one"] = 1.0
    trains_own: ClassVar[bool] = True

    def model_for(self, client: Tensors, server: Tensors) -> Tensor:
        return client.get("v", server["w"])

    def correct_own(self, g: Tensor, v: Tensor, server: Tensors) -> None:
        g += self.lam * (v - server["w"])

    def finish(self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors) -> Finished:
        return {"w": y}, {"v": extra["own"]} if "own" in extra else {}
