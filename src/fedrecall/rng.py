"""Randomness as a function of (seed, purpose, round, client).

There is no global generator: whoever needs random numbers asks for the stream of what it is doing. A client
therefore draws the same numbers in any process, in any order, and in a resumed run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch

# The numbers are part of every result: append, never renumber.
PURPOSES: Final[dict[str, int]] = {
    "init": 1,  # the model's initial weights
    "sample": 2,  # which clients take part in a round
    "batches": 3,  # the order of a client's samples
    "augment": 4,  # crops and flips
    "model": 5,  # dropout and whatever else the model draws while it trains
}


def entropy(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.SeedSequence:
    """What a stream is made of. Different arguments give independent streams."""
    return np.random.SeedSequence([seed, PURPOSES[purpose], round, client % 2**32])  # everyone is client -1


def stream(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """The NumPy generator of this purpose.

    >>> int(stream(0, "sample", round=1).integers(1000)) == int(stream(0, "sample", round=1).integers(1000))
    True
    """
    return np.random.Generator(np.random.PCG64(entropy(seed, purpose, round, client)))


def torch_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    return int(entropy(seed, purpose, round, client).generate_state(1, np.uint64)[0] >> np.uint64(1))


def torch_stream(seed: int, purpose: str, round: int = 0, client: int = 0) -> torch.Generator:
    """The torch generator of this purpose."""
    return torch.Generator().manual_seed(torch_seed(seed, purpose, round, client))


@contextmanager
def default_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> Iterator[None]:
    """Dropout and initialisation read torch's default generator: lend it this stream, then give it back."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(seed, purpose, round, client))
        yield
