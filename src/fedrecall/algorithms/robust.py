"""Robust aggregation: the server's model follows most clients, whatever some of them send.

Clients are not weighted by their samples, which a malicious client could state as it likes. Only what an algorithm
sends is aggregated this way: averaged batch-norm statistics remain a weighted mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedrecall.algorithms.base import Algorithm
from fedrecall.algorithms.context import ClientUpdate, ServerContext
from fedrecall.config.options import Whole
from fedrecall.core.vector import Tensors

CHUNK = 2**18  # coordinates that are sorted at once, so that memory does not grow with the model


class CoordinateWise(Algorithm):
    """Aggregates each coordinate of the clients' models by itself."""

    needs: ClassVar[frozenset[str]] = frozenset({"clients"})

    def aggregate_updates(self, server: Tensors, updates: Sequence[ClientUpdate], context: ServerContext) -> Tensors:
        parts = zip(*(torch.split(update.sent["w"], CHUNK) for update in updates))
        return {"w": torch.cat([self.centre(torch.stack(part).double().sort(0).values) for part in parts])}

    def centre(self, ordered: Tensor) -> Tensor:
        """Return the aggregate of [clients, coordinates], sorted by value in each coordinate."""
        raise NotImplementedError


@dataclass(frozen=True)
class CoordinateMedian(CoordinateWise):
    """The median of the clients' models, coordinate by coordinate.

    Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018,
    arXiv 1803.01498. x_j <- median_S y_j; of an even number of clients the mean of the two in the middle.
    """

    title: ClassVar[str] = "Median"

    def centre(self, ordered: Tensor) -> Tensor:
        m = len(ordered)
        return ordered[(m - 1) // 2 : m // 2 + 1].mean(0)


@dataclass(frozen=True)
class TrimmedMean(CoordinateWise):
    """The mean of the clients' models without the extreme ones, coordinate by coordinate.

    Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018,
    arXiv 1803.01498. The floor(trim m) smallest and as many largest of m values are left out of x_j.
    """

    trim: Annotated[float, Field(ge=0, lt=0.5), "share of the clients that is left out at each end"] = 0.1
    title: ClassVar[str] = "Trimmed mean"

    def centre(self, ordered: Tensor) -> Tensor:
        m = len(ordered)
        aside = int(self.trim * m + 1e-9)  # 0.29 of 100 is 29, though the product is less
        return ordered[aside : m - aside].mean(0)


@dataclass(frozen=True)
class Krum(Algorithm):
    """The client's model that is closest to most others; with `selected` the mean of several.

    Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017.

    score_i = sum of |y_i - y_j|^2 over the m - f - 2 clients j closest to i; x <- the y_i of the lowest score, or the
    mean of the `selected` lowest (multi-Krum). It tolerates f malicious clients if 2 f + 2 < m. If fewer clients
    answer than are asked, scores are over at least one other.
    """

    byzantine: Annotated[Whole, "f: malicious clients in a round that are to be tolerated"] = 0
    selected: Annotated[int, Field(ge=1), "how many models are averaged; above 1 this is multi-Krum"] = 1
    needs: ClassVar[frozenset[str]] = frozenset({"clients"})

    @property
    def least_clients(self) -> int:  # type: ignore[override]
        return max(2 * self.byzantine + 3 if self.byzantine else 1, self.selected)

    def aggregate_updates(self, server: Tensors, updates: Sequence[ClientUpdate], context: ServerContext) -> Tensors:
        models = [update.sent["w"] for update in updates]
        scores = krum_scores(squared_distances(models), self.byzantine)
        chosen = sorted(np.argsort(scores, kind="stable")[: self.selected].tolist())
        return {"w": sum(models[i].double() for i in chosen) / len(chosen)}


def squared_distances(models: Sequence[Tensor]) -> np.ndarray:
    """Return the squared distance of each two models."""
    distances = np.zeros((len(models), len(models)))
    for i, first in enumerate(models):
        for j in range(i):
            # NumPy's sum does not depend on the number of threads.
            distances[i, j] = distances[j, i] = np.square((first.double() - models[j]).numpy()).sum()
    return distances


def krum_scores(distances: np.ndarray, byzantine: int) -> np.ndarray:
    """Return each client's sum of squared distances to the closest m - f - 2 others, at least one."""
    closest = np.sort(distances, axis=1)[:, 1:]  # without the distance to itself
    scores: np.ndarray = closest[:, : max(1, len(distances) - byzantine - 2)].sum(axis=1)
    return scores
