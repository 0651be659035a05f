"""Poisson sampling of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedrecall.participation.base import Sampler


@dataclass(frozen=True)
class PoissonSampling(Sampler):
    """Each client takes part with the same probability, independently of the others.

    The number of clients differs from round to round. A round may be empty: then the model stays as it is.
    """

    fraction: Annotated[float, Field(gt=0, le=1), "the probability of each client, in each round"] = 0.1
    sampling: ClassVar[str | None] = "poisson"

    def expected(self, population: int) -> int:
        return max(1, round(population * self.fraction))

    def sample(self, round: int, population: int, random: np.random.Generator) -> Sequence[int]:
        ids: list[int] = np.flatnonzero(random.random(population) < self.fraction).tolist()
        return ids
