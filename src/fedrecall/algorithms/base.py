"""What an algorithm is. The defaults are FedAvg; a subclass overrides the lines in which its paper differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedrecall.vector import Tensors


@dataclass(frozen=True)
class LocalSteps:
    """The local training as it was taken."""

    steps: int  # K: optimiser steps
    lr: float  # eta_l: the local rate of this round
    momentum: float  # rho
    samples: int  # n_i: the client's training samples


class Algorithm:
    """Elementwise arithmetic on flat vectors; leading dimensions are allowed.

    x is the server's vector ("w" of its state), y a client's after its steps. Server and client state are named
    flat tensors, so that checkpoints, processes and networks carry every algorithm without knowing it.
    """

    # What `finish` wants in `extra` and `penalty` in its arguments; the worker computes only what is named here.
    needs: ClassVar[frozenset[str]] = frozenset()
    pooled: ClassVar[bool] = False  # one client with everyone's data takes the place of the sampled ones
    personal: ClassVar[bool] = False  # a client goes on from its own model, which is its state "w"

    def init(self, x: Tensor) -> Tensors:
        """The server's state before the first round."""
        return {"w": x}

    def init_client(self, x: Tensor) -> Tensors:
        """The state of a client that has not taken part yet."""
        return {}

    def broadcast(self, server: Tensors) -> Tensors:
        """What a client is sent."""
        return {"w": server["w"]}

    def correct(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> None:
        """Change the gradient of a local step, in place. `server` is what was sent."""

    def finish(
        self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors
    ) -> tuple[Tensors, Tensors]:
        """After the last local step: what the client sends, and its new state."""
        return {"w": y}, {}

    def weight(self, name: str, samples: int, steps: int) -> float:
        """The weight of a client's tensor `name` in the sum over the round's clients."""
        return float(samples)

    def aggregate(self, server: Tensors, sums: Tensors, totals: dict[str, float], population: int) -> Tensors:
        """The server's new state, from weighted float64 sums and the sums of the weights.

        `population` counts the clients that may train. The round loop rounds the result once.
        """
        return {"w": sums["w"] / totals["w"]}

    def evaluated(self, server: Tensors) -> Tensor:
        """The vector that is evaluated and saved."""
        return server["w"]
