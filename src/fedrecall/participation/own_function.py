"""A user's plain function as a way to choose a round's clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedrecall.config.components import PlainFunction
from fedrecall.participation.base import Sampler


@dataclass(frozen=True, eq=False)
class FunctionSampling(PlainFunction, Sampler):
    """Selects the clients that a function of (round, population, random) returns.

    The expected number of clients, by which `auto` chooses an engine, is that of the first round.
    """

    arguments: ClassVar[tuple[str, ...]] = ("round", "population", "random")

    def expected(self, population: int) -> int:
        return max(1, len(self.sample(1, population, np.random.default_rng(0))))

    def sample(self, round: int, population: int, random: np.random.Generator) -> Sequence[int]:
        return list(self.function(round, population, random, **self.options))
