"""What participation is: which clients a round asks, and which of them answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np


class Participation:
    """Two functions of the round and a stream of random numbers. Client ids are 0 .. population - 1."""

    recipe_section: ClassVar[str] = "participation"

    def expected(self, population: int) -> int:
        """Return how many clients a round asks, on average."""
        raise NotImplementedError

    def sample(self, round: int, population: int, random: np.random.Generator) -> Sequence[int]:
        """Return the clients that a round asks."""
        raise NotImplementedError

    def answering(self, round: int, clients: Sequence[int], random: np.random.Generator) -> Sequence[int]:
        """Return those of the asked clients that train and answer; by default all of them."""
        return clients
