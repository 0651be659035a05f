"""The base class of update stages, which transform updates before and after they are summed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedrecall.core.rng import stream
from fedrecall.core.vector import Tensors

SERVER = -1  # `StageContext.client` of a stage that transforms the sum over all clients


@dataclass(frozen=True)
class StageContext:
    """The round, client and position at which a stage runs, and its random numbers."""

    seed: int
    round: int
    client: int  # SERVER for the sum over all clients
    cohort: int  # number of clients selected for the round
    place: int  # index of the stage in the pipeline
    expected: int = 0  # expected number of clients in a round, known where sums are transformed

    def stream(self) -> np.random.Generator:
        """Return a generator that depends on the context alone; every call returns the same stream."""
        return stream(self.seed, "updates", self.round, self.client).spawn(self.place + 1)[self.place]


class DecodeError(Exception):
    """A client's message cannot be decoded; the sentence completes one that begins with the client."""


class Stage:
    """Transforms the change in an update: each named tensor minus the tensor of that name sent to the client.

    `send` runs on the client and returns the message, whose shapes must not depend on the data. `receive` runs on
    the server and decodes each client's message. `aggregate` runs on the server, on the weighted sums over the
    round. A subclass overrides the methods it needs. Vectors have no padding.
    """

    recipe_section: ClassVar[str] = "updates"
    equal_weights: ClassVar[bool] = False  # every client weighs 1 in the sums, whatever its samples
    needs_every_round: ClassVar[bool] = False  # `aggregate` is also called if no client answered, with zeros

    def send(self, change: Tensors, state: Tensors, at: StageContext) -> tuple[Tensors, Tensors]:
        """Return the message and the state for the client's next round; `state` is the previous one."""
        return change, {}

    def receive(self, sent: Tensors, at: StageContext) -> Tensors:
        """Return the change decoded from a client's message; raise a `DecodeError` for one that `send` cannot make."""
        return sent

    def aggregate(self, sums: Tensors, totals: dict[str, float], at: StageContext) -> Tensors:
        """Return the transformed sums of changes; `totals` are the sums of the weights."""
        return sums

    def divisors(self, totals: dict[str, float], at: StageContext) -> dict[str, float]:
        """Return the numbers by which the algorithm divides the sums; by default the sums of the weights."""
        return totals
