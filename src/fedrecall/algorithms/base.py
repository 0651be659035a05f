"""What an algorithm is. The defaults are FedAvg; a subclass overrides the lines in which its paper differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from fedrecall.algorithms.context import ClientUpdate, ServerContext
from fedrecall.optimisers import SGD, Optimiser
from fedrecall.vector import Slot, Tensors

Finished = tuple[Tensors, Tensors]  # what a client sends, and its new state
Totals = dict[str, float]  # the sums of the weights, by the name of what was sent


@dataclass(frozen=True)
class LocalSteps:
    """Summary of one client's local training."""

    steps: int  # K: optimiser steps
    lr: float  # eta_l: the local rate of this round
    samples: int  # n_i: the client's training samples
    optimiser: Optimiser = field(default_factory=SGD)

    @property
    def momentum(self) -> float:
        """Return rho, the momentum of local SGD."""
        return float(getattr(self.optimiser, "momentum", 0.0))

    def accumulated(self, mu: float = 0.0) -> float:
        """Return |a|_1: K steps along one constant gradient g move the model by -lr |a|_1 g.

        K without momentum; `mu` is the strength of a proximal term, which holds the model back.

        >>> LocalSteps(steps=3, lr=0.1, samples=1).accumulated()
        3.0
        """
        return self.optimiser.moved(self.steps, self.lr, mu)


@dataclass(frozen=True)
class Population:
    """The clients that may train, whether or not they are in a round."""

    clients: int  # N
    samples: int  # all their training samples


class Algorithm:
    """Elementwise arithmetic on flat vectors; leading dimensions are allowed.

    x is the server's vector ("w" of its state), y a client's after its steps. Server and client state are named
    flat tensors, so that checkpoints, processes and networks carry every algorithm without knowing it.
    """

    recipe_section: ClassVar[str] = "algorithm"
    title: ClassVar[str | None] = None  # what it is called, if not as the class
    # What is computed for this algorithm, and only then: "features" and "previous" for `penalty`, "fisher" for
    # `finish`; "clients": it aggregates single updates (`aggregate_updates`) and not their sums.
    needs: ClassVar[frozenset[str]] = frozenset()
    # The module whose output is a sample's representation; None: the input of the last nn.Linear.
    representation: str | None = None
    # What leaves a client beside the sums over a round: "class_counts", how many samples of each class it has.
    discloses: ClassVar[frozenset[str]] = frozenset()
    facts: ClassVar[frozenset[str]] = frozenset()  # sent tensors that are numbers about an update, not parts of it
    pooled: ClassVar[bool] = False  # one client with everyone's data takes the place of the sampled ones
    exchanges: ClassVar[bool] = True  # clients send something to the server; False for the two bounds
    assumes_sgd: ClassVar[str | None] = None  # why local steps must be those of SGD
    divides_by_rate: ClassVar[bool] = False  # a local rate of zero has no meaning
    # What an algorithm does besides FedAvg, so that nobody pays for what it does not do. It is found by the
    # methods that a class overrides, wherever it inherits them from.
    keeps_state: ClassVar[bool] = False  # clients keep something from round to round (`init_client`)
    corrects: ClassVar[bool] = False  # gradients are changed (`correct`)
    sends_models: ClassVar[bool] = True  # a client sends its model as it is, and nothing else (not with `finish`)
    personal: ClassVar[bool] = False  # clients have models of their own (`model_for`)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.keeps_state = cls.init_client is not Algorithm.init_client
        cls.corrects = cls.correct is not Algorithm.correct
        cls.sends_models = cls.finish is Algorithm.finish
        cls.personal = cls.model_for is not Algorithm.model_for

    def for_model(self, slots: Sequence[Slot]) -> Algorithm:
        """Return the algorithm for a model whose parameters lie in `slots` of the flat vector."""
        return self

    def init(self, x: Tensor) -> Tensors:
        """The server's state before the first round."""
        return {"w": x}

    def init_client(self, x: Tensor) -> Tensors:
        """The state of a client that has not taken part yet."""
        return {}

    def broadcast(self, server: Tensors) -> Tensors:
        """The tensors that a client is sent."""
        return {"w": server["w"]}

    def model_for(self, client: Tensors, server: Tensors) -> Tensor:
        """Return the vector that a client starts from and is judged with.

        `client` is its state, `server` what it is sent. An algorithm that overrides this gives clients models of
        their own.
        """
        return server["w"]

    def correct(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> None:
        """Change the gradient of a local step, in place. `server` is what was sent."""

    def penalty(self, features: Tensor, global_features: Tensor, previous_features: Tensor) -> Tensor:
        """Added to the objective if `needs` names "features": of the batch by the client's model as it trains,
        by the model that was sent, and (with "previous") by the client's model of its last round, `state["w"]`."""
        raise NotImplementedError

    def finish(self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors) -> Finished:
        """After the last local step: what the client sends, and its new state.

        `extra` has "fisher" if `needs` names it: the mean over the client's samples of the squared gradient of
        each sample's cross-entropy at y.
        """
        return {"w": y}, {}

    def update(self, sent: Tensors, server: Tensors) -> Tensor | None:
        """y - x in float64, from what a client sent and what it was sent; it is only measured. None: not known."""
        return sent["w"].double() - server["w"] if "w" in sent else None

    def weight(self, name: str, samples: int, steps: int) -> float:
        """The weight of a client's tensor `name` in the sum over the round's clients."""
        return float(samples)

    def aggregate(self, server: Tensors, sums: Tensors, totals: Totals, population: Population) -> Tensors:
        """The server's new state, from weighted float64 sums and the sums of the weights.

        The round loop rounds the result once.
        """
        return {"w": sums["w"] / totals["w"]}

    def aggregate_updates(
        self, server: Tensors, updates: Sequence[ClientUpdate], context: ServerContext
    ) -> Tensors:
        """Return the server's new state from the single updates, where `needs` names "clients"."""
        raise NotImplementedError

    def evaluated(self, server: Tensors) -> Tensor:
        """The vector that is evaluated and saved."""
        return server["w"]
