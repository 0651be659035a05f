"""Uniform sampling of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedrecall.config.options import Positive
from fedrecall.errors import InputError
from fedrecall.participation.base import Sampler


@dataclass(frozen=True)
class UniformSampling(Sampler):
    """Uniform sampling without replacement of a fixed number of clients: round(K p) of K, at least one."""

    fraction: Annotated[float, Field(gt=0, le=1), "of the clients, in each round"] = 0.1
    clients: Annotated[Positive | None, "or: how many are in a round"] = None
    sampling: ClassVar[str | None] = "without_replacement"

    def expected(self, population: int) -> int:
        if self.clients is None:
            return max(1, round(population * self.fraction))
        if self.clients > population:
            raise InputError(f"clients_per_round is {self.clients}, but only {population} clients may train")
        return self.clients

    def sample(self, round: int, population: int, random: np.random.Generator) -> Sequence[int]:
        chosen = random.choice(population, size=self.expected(population), replace=False)
        ids: list[int] = np.sort(chosen).tolist()
        return ids
