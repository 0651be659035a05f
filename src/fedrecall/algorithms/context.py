"""What an algorithm that aggregates single updates is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from fedrecall.vector import FlatModel, Tensors


class ClientUpdate(Protocol):
    """The update of one client, as the server has it. Its tensors stay valid after the round."""

    @property
    def client(self) -> int: ...

    @property
    def sent(self) -> Tensors: ...

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each sent tensor in a weighted sum."""

    @property
    def samples(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def loss(self) -> float:
        """The mean over the client's steps."""


class UnlabelledData(Protocol):
    """Samples that the server has, without labels."""

    def __len__(self) -> int: ...

    def batch(self, positions: Tensor) -> Tensor:
        """Return the samples at these positions, as the model takes them."""


@dataclass(frozen=True)
class ServerContext:
    """What the server has at hand in a round, beside the updates."""

    round: int
    clients: int  # N: those that may train
    build_model: Callable[[], FlatModel]  # with its initial weights; `load` gives it others
    stream: Callable[[], np.random.Generator]  # random numbers of this round, the same ones at each call
    class_counts: Callable[[int], Tensor]  # a client's training samples by class, if the algorithm discloses them
    server_data: UnlabelledData | None = None  # what the recipe's key `server_data` names
