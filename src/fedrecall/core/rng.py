"""Randomness as a function of (seed, purpose, round, client).

There is no global generator: each use has its own stream. A client therefore draws the same numbers in any
process, in any order, and in a resumed run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from torch import Tensor

from fedrecall.core.vector import HERE

# The numbers are part of every result: append, never renumber.
PURPOSES: Final[dict[str, int]] = {
    "init": 1,  # the model's initial weights
    "sample": 2,  # the clients of a round
    "batches": 3,  # the order of a client's samples
    "augment": 4,  # crops and flips
    "model": 5,  # dropout and other draws of the model in training
    "probe": 6,  # the clients on whose data forgetting is measured
    "evaluate": 7,  # draws of the model in evaluation
    "updates": 8,  # noise and rounding of a client's update
    "answers": 9,  # the sampled clients that answer
    "aggregate": 10,  # draws of the server in aggregation
    "stragglers": 11,  # the clients that are slow in a round
    "clock": 12,  # the speed and the bandwidth of each client
    "calibrate": 15,  # features drawn to calibrate a finished model
}

# SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): the golden ratio as a stride, and two multipliers.
STRIDE, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = 2**64
U64 = {number: np.uint64(number) for number in (STRIDE, FIRST, SECOND, 30, 27, 31)}


def splitmix(state: int) -> int:
    """Return the output of SplitMix64 for a state."""
    z = (state + STRIDE) % WORD
    z = (z ^ (z >> 30)) * FIRST % WORD
    z = (z ^ (z >> 27)) * SECOND % WORD
    return z ^ (z >> 31)


def splitmix_array(state: np.ndarray) -> np.ndarray:
    """Apply `splitmix` to every element of a uint64 array."""
    z = state + U64[STRIDE]
    z ^= z >> U64[30]
    z *= U64[FIRST]
    z ^= z >> U64[27]
    z *= U64[SECOND]
    z ^= z >> U64[31]
    return z


@lru_cache(maxsize=1024)
def key(seed: int, purpose: str, *parts: int) -> int:
    """Return a 64-bit hash of a stream's arguments; cached, because all clients of a round ask for the round's."""
    state = 0
    for part in (seed, PURPOSES[purpose], *parts):
        state = splitmix(state ^ part % WORD)
    return state


def stream(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """Return the NumPy generator for this purpose; different arguments give independent streams.

    >>> int(stream(0, "sample", round=1).integers(1000)) == int(stream(0, "sample", round=1).integers(1000))
    True
    """
    parts = [seed, PURPOSES[purpose], round, client % 2**32]  # EVERYONE is client -1
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(parts)))


def orders(seed: int, round: int, clients: np.ndarray, epoch: int, count: int) -> np.ndarray:
    """Return [clients, count]: the order of each client's samples in an epoch of a round.

    An order sorts hashed keys: a whole cohort costs little more than one client, and each client's order does not
    depend on the others.

    >>> alone, both = (orders(0, 1, np.array(clients), 0, 5) for clients in ([7], [3, 7]))
    >>> bool((alone[0] == both[1]).all()), sorted(alone[0].tolist())
    (True, [0, 1, 2, 3, 4])
    """
    first = np.uint64(key(seed, "batches", round, epoch))
    client = splitmix_array(clients.astype(np.int64).view(np.uint64) ^ first)
    return np.argsort(splitmix_array(client[:, None] + strides(count)), axis=1, kind="stable")


@lru_cache(maxsize=64)
def strides(count: int) -> np.ndarray:
    return U64[STRIDE] * np.arange(1, count + 1, dtype=np.uint64)


class Shuffle:
    """One client's sample orders in a round, one epoch per call, equal to those of `orders`."""

    def __init__(self, seed: int, round: int, client: int) -> None:
        self._seed, self._round, self._client = seed, round, client % WORD
        self._epoch = 0

    def permutation(self, indices: np.ndarray) -> np.ndarray:
        client = splitmix(self._client ^ key(self._seed, "batches", self._round, self._epoch))
        self._epoch += 1
        keys = splitmix_array(strides(len(indices)) + np.uint64(client))
        shuffled: np.ndarray = indices[np.argsort(keys, kind="stable")]
        return shuffled


def torch_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    return key(seed, purpose, round, client) >> 1


def torch_stream(seed: int, purpose: str, round: int = 0, client: int = 0) -> torch.Generator:
    """Return the torch generator for this purpose."""
    return torch.Generator().manual_seed(torch_seed(seed, purpose, round, client))


@contextmanager
def default_generator(
    seed: int, purpose: str, round: int = 0, client: int = 0, device: torch.device = HERE
) -> Iterator[None]:
    """Seed torch's default generators, that of the CPU and of the current `device`; restore them on exit."""
    before = generator_states(device)
    drawn = torch_seed(seed, purpose, round, client)
    torch.default_generator.manual_seed(drawn)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(drawn)
    try:
        yield
    finally:
        set_generator_states(device, before)


def generator_states(device: torch.device) -> list[Tensor]:
    """Return the states of the default generators of the CPU and of a device."""
    states = [torch.get_rng_state()]
    return states if device.type == "cpu" else [*states, torch.get_device_module(device).get_rng_state(device)]


def set_generator_states(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[1], device)
