"""The base class of participation: which clients a round selects, and which of them answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np


class Participation:
    """Selects clients as a function of the round and a random stream. Client ids are 0 .. population - 1."""

    recipe_section: ClassVar[str] = "participation"
    # The scheme that privacy accounting may rely on: "poisson" (each client by itself, with probability `fraction`),
    # "without_replacement" (uniform, a fixed number), or None. A class that overrides `sample` states its own.
    sampling: ClassVar[str | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "sample" in vars(cls) and "sampling" not in vars(cls):
            cls.sampling = None

    def expected(self, population: int) -> int:
        """Return the expected number of clients selected in a round."""
        raise NotImplementedError

    def sample(self, round: int, population: int, random: np.random.Generator) -> Sequence[int]:
        """Return the clients selected in a round."""
        raise NotImplementedError

    def answering(self, round: int, clients: Sequence[int], random: np.random.Generator) -> Sequence[int]:
        """Return the selected clients that train and answer; by default all of them."""
        return clients
