"""Upper and lower bound of federated methods: centralised training on all data, and no exchange at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedrecall.algorithms.base import Algorithm, Finished, LocalSteps, Population, Totals
from fedrecall.core.vector import Tensors


@dataclass(frozen=True)
class Centralised(Algorithm):
    """The upper bound: one client trains on all data, for as many steps as the sampled clients would take.

    Its label shares are those of all training data.
    """

    pooled: ClassVar[bool] = True
    exchanges: ClassVar[bool] = False


@dataclass(frozen=True)
class LocalOnly(Algorithm):
    """The lower bound: every client trains its own model and nothing is exchanged.

    A client's model and buffers are its state. Accuracies are means over the clients' models; a client that has
    not trained yet has the initial model.
    """

    title: ClassVar[str] = "Local only"
    exchanges: ClassVar[bool] = False

    def model_for(self, client: Tensors, server: Tensors) -> Tensor:
        return client.get("w", server["w"])

    def finish(self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors) -> Finished:
        return {}, {"w": y}

    def aggregate(self, server: Tensors, sums: Tensors, totals: Totals, population: Population) -> Tensors:
        return server
