"""Cyclic participation: groups of clients take turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from fedrecall.config.options import Positive
from fedrecall.errors import InputError
from fedrecall.participation.base import Sampler


@dataclass(frozen=True)
class CyclicSampling(Sampler):
    """Groups of clients take turns: client k is in group k mod G, and round t asks group (t - 1) mod G.

    Cho et al., "On the Convergence of Federated Averaging with Cyclic Client Participation", ICML 2023, arXiv
    2302.03109. Within the group, sampling is uniform without replacement.
    """

    groups: Annotated[Positive, "G: the number of groups"] = 4
    fraction: Annotated[float, Field(gt=0, le=1), "of the group's clients, at least one"] = 1.0

    def expected(self, population: int) -> int:
        if self.groups > population:
            raise InputError(f"participation.groups is {self.groups}, but only {population} clients may train")
        return self._count(-(-population // self.groups))

    def sample(self, round: int, population: int, random: np.random.Generator) -> Sequence[int]:
        group = np.arange((round - 1) % self.groups, population, self.groups)
        ids: list[int] = np.sort(random.choice(group, size=self._count(len(group)), replace=False)).tolist()
        return ids

    def _count(self, size: int) -> int:
        return max(1, round(size * self.fraction))
