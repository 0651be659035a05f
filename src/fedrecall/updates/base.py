"""What a stage is: one step on the way of a client's update into the round's sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedrecall.rng import stream
from fedrecall.vector import Tensors

SERVER = -1  # the client's number where a stage works on the sum of all


@dataclass(frozen=True)
class Occasion:
    """When a stage works, on whose update, and what it may draw."""

    seed: int
    round: int
    client: int  # SERVER: the sum over all
    cohort: int  # how many clients take part in the round
    place: int  # of the stage in the pipeline

    def stream(self) -> np.random.Generator:
        """Return random numbers that follow from the occasion; each call returns the same ones."""
        return stream(self.seed, "updates", self.round, self.client).spawn(self.place + 1)[self.place]


class Stage:
    """Works on the change that an update makes: each named tensor less what the client was sent under that name.

    `send` runs at the client. What it returns is what travels; its shapes must not depend on the data. `receive`
    runs at the server on each client's message and undoes an encoding. `aggregate` runs there on the weighted
    sums over the round. Override those that the method at hand needs.
    """

    recipe_section: ClassVar[str] = "updates"

    def send(self, change: Tensors, state: Tensors, at: Occasion) -> tuple[Tensors, Tensors]:
        """Return what travels, and what the client keeps for its next round (`state` is what it kept last)."""
        return change, {}

    def receive(self, sent: Tensors, at: Occasion) -> Tensors:
        """Return the change that a client's message stands for."""
        return sent

    def aggregate(self, sums: Tensors, totals: dict[str, float], at: Occasion) -> Tensors:
        """Return the sums of changes that the server update is made of; `totals` are the sums of the weights."""
        return sums
