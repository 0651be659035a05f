"""Inputs of algorithms that aggregate single updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from fedrecall.core.vector import FlatModel, Tensors


class ClientUpdate(Protocol):
    """One client's update as the server received it. Its tensors stay valid after the round."""

    @property
    def client(self) -> int: ...

    @property
    def sent(self) -> Tensors: ...

    @property
    def buffers(self) -> Tensors:
        """Return the client's batch-norm statistics; empty if it sends none."""

    @property
    def weights(self) -> Mapping[str, float]:
        """Return the weight of each sent tensor in a weighted sum."""

    @property
    def samples(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def loss(self) -> float:
        """Return the mean loss over the client's steps."""


class UnlabelledData(Protocol):
    """Unlabelled samples on the server."""

    def __len__(self) -> int: ...

    def batch(self, positions: Tensor) -> Tensor:
        """Return the samples at these positions as input of the model."""


@dataclass(frozen=True)
class ServerContext:
    """The server's inputs in a round, beside the updates."""

    round: int
    clients: int  # N: the clients that may train
    buffers: Tensors  # the clients' mean batch-norm statistics
    build_model: Callable[[], FlatModel]  # the model with its initial weights; `load` replaces them
    stream: Callable[[], np.random.Generator]  # random numbers of this round, the same ones at each call
    class_counts: Callable[[int], Tensor]  # a client's training samples by class, if the algorithm discloses them
    server_data: UnlabelledData | None = None  # the data named by the recipe's key `server_data`
