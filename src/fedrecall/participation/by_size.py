"""Sampling of clients in proportion to their samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedrecall.participation.uniform import UniformSampling


@dataclass(frozen=True)
class SamplingBySize(UniformSampling):
    """Sampling without replacement, one client after the other, in proportion to their training samples.

    Li et al., "On the Convergence of FedAvg on Non-IID Data", ICLR 2020, arXiv 1907.02189, draw with replacement and
    average without weights.
    """

    def choose(self, round: int, sizes: np.ndarray, random: np.random.Generator) -> Sequence[int]:
        population = len(sizes)
        chosen = random.choice(population, self.expected(population), replace=False, p=sizes / sizes.sum())
        ids: list[int] = np.sort(chosen).tolist()
        return ids
