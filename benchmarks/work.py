"""The three kinds of work that simulators are compared on, with made-up data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Work:
    """Clients of equal size, some of them a round, a number of local steps each."""

    about: str
    model: str
    clients: int
    samples: int  # of each client
    per_round: int
    steps: int
    batch_size: int
    lr: float = 0.05


WORKS = {
    "W1": Work("the paper's round: LeNet on 3x32x32", "lenet", 100, 450, 10, 21, 64),
    "W2": Work("many small clients: LeNet on 3x32x32", "lenet", 1000, 50, 50, 5, 10),
    "W3": Work("a linear head on 512-d embeddings", "linear", 2000, 20, 500, 2, 10),
}


def data(work: Work) -> tuple[np.ndarray, np.ndarray]:
    """Samples and labels, client after client."""
    random = np.random.default_rng(0)
    count = work.clients * work.samples
    labels = random.integers(0, 10, count)
    if work.model == "lenet":
        return random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), labels
    return random.normal(size=(count, 512)).astype(np.float32), labels
