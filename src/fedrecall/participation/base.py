"""The base classes of participation: which clients a round selects, which of them answer, and which are slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

Chance = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Late = Literal["fewer_steps", "left_out"]


class Participation:
    """Selects clients as a function of the round and a random stream. Client ids are 0 .. population - 1."""

    recipe_section: ClassVar[str] = "participation"
    dropout: float = 0.0
    stragglers: float = 0.0
    late: Late = "fewer_steps"
    # The scheme that privacy accounting may rely on: "poisson" (each client by itself, with probability `fraction`),
    # "without_replacement" (uniform, a fixed number), or None. A class that chooses clients itself states its own.
    sampling: ClassVar[str | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if vars(cls).keys() & {"sample", "choose", "answering"} and "sampling" not in vars(cls):
            cls.sampling = None

    def expected(self, population: int) -> int:
        """Return the expected number of clients selected in a round."""
        raise NotImplementedError

    def sample(self, round: int, population: int, random: np.random.Generator) -> Sequence[int]:
        """Return the clients selected in a round."""
        raise NotImplementedError

    def choose(self, round: int, sizes: np.ndarray, random: np.random.Generator) -> Sequence[int]:
        """Return the clients selected in a round, given the number of training samples of each client.

        Override this instead of `sample` if the sizes matter.
        """
        return self.sample(round, len(sizes), random)

    def answering(self, round: int, clients: Sequence[int], random: np.random.Generator) -> Sequence[int]:
        """Return the selected clients that train and answer; each one fails with the probability `dropout`."""
        if not self.dropout:
            return clients
        drawn = random.random(len(clients)).tolist()
        return [client for client, chance in zip(clients, drawn) if chance >= self.dropout]

    def straggling(self, round: int, clients: Sequence[int], random: np.random.Generator) -> dict[int, float]:
        """Return the selected clients that are slow in this round, with the share of their steps, from 0 to 1."""
        if not self.stragglers:
            return {}
        drawn = random.random((len(clients), 2)).tolist()
        return {client: share for client, (chance, share) in zip(clients, drawn) if chance < self.stragglers}


@dataclass(frozen=True)
class Sampler(Participation):
    """The options that all samplers share: clients that fail and clients that are slow."""

    dropout: Annotated[Chance, "the chance that a selected client sends nothing in a round"] = field(
        default=0.0, kw_only=True
    )
    stragglers: Annotated[Chance, "the chance that a selected client is slow in a round"] = field(
        default=0.0, kw_only=True
    )
    late: Annotated[Late, "what a slow client does: fewer_steps (as many as it can) | left_out (it sends nothing)"] = (
        field(default="fewer_steps", kw_only=True)
    )
