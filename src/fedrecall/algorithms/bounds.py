"""The two bounds that a federated method lies between: all data in one place, and no exchange at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedrecall.algorithms.base import Algorithm, Finished, LocalSteps, Population, Totals
from fedrecall.vector import Tensors


@dataclass(frozen=True)
class Centralised(Algorithm):
    """The upper bound: one client with all training data, as many steps a round as the sampled clients would take.

    Its label shares are those of all training data.
    """

    pooled: ClassVar[bool] = True
    exchanges: ClassVar[bool] = False


@dataclass(frozen=True)
class LocalOnly(Algorithm):
    """The lower bound: every client trains its own model and nothing is exchanged.

    A client's model and buffers are its state. Accuracies are means over the clients' models, of which those that
    have not trained yet are the initial one.
    """

    title: ClassVar[str] = "Local only"
    exchanges: ClassVar[bool] = False

    def model_for(self, client: Tensors, server: Tensors) -> Tensor:
        return client.get("w", server["w"])

    def finish(self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors) -> Finished:
        return {}, {"w": y}

    def aggregate(self, server: Tensors, sums: Tensors, totals: Totals, population: Population) -> Tensors:
        return server
