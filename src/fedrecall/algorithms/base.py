"""Base class of the algorithms: the defaults are FedAvg, and subclasses override the steps that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from fedrecall.algorithms.context import ClientUpdate, ServerContext
from fedrecall.core.vector import Tensors, TensorSlot
from fedrecall.optimisers import SGD, Optimiser

Finished = tuple[Tensors, Tensors]  # the tensors that a client sends, and its new state
Totals = dict[str, float]  # the sum of the clients' weights for each sent tensor


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

        It equals K without momentum; `mu` is the strength of a proximal term, which reduces the movement.

        >>> LocalSteps(steps=3, lr=0.1, samples=1).accumulated()
        3.0
        """
        return self.optimiser.moved(self.steps, self.lr, mu)


@dataclass(frozen=True)
class Population:
    """All clients that may train, sampled in this round or not."""

    clients: int  # N
    samples: int  # all their training samples


class Algorithm:
    """Elementwise arithmetic on flat vectors; leading dimensions are allowed.

    x is the server's vector ("w" of its state), y a client's after its steps. Server and client state are named
    flat tensors, so checkpoints, processes and networks handle all algorithms alike.
    """

    recipe_section: ClassVar[str] = "algorithm"
    title: ClassVar[str | None] = None  # the display name; None: the class name
    # Optional inputs, computed only on request: "features" and "previous" for `penalty`, "fisher" for `finish`;
    # "gradient" for `perturbation`; "clients" to aggregate single updates (`aggregate_updates`) instead of their sums,
    # and "server_data" if it cannot do so without; "head" or "batch_norm" to be told where these layers are
    # (`for_home`).
    needs: ClassVar[frozenset[str]] = frozenset()
    # The module whose output is a sample's representation; None: the input of the last nn.Linear.
    representation: str | None = None
    # Statistics that clients disclose beside the round's sums: "class_counts", their samples of each class.
    discloses: ClassVar[frozenset[str]] = frozenset()
    facts: ClassVar[frozenset[str]] = frozenset()  # sent tensors that are numbers about an update, not parts of it
    least_clients: int = 1  # the fewest clients in a round that can be aggregated
    pooled: ClassVar[bool] = False  # one client with the data of all replaces the sampled clients
    exchanges: ClassVar[bool] = True  # clients send something to the server; False for the two bounds
    assumes_sgd: ClassVar[str | None] = None  # the reason, if local steps must be those of SGD
    divides_by_rate: ClassVar[bool] = False  # the local rate must not be zero
    keeps_statistics: ClassVar[bool] = False  # batch-norm statistics stay with the clients
    # After its steps a client trains the model of `model_for` as well, by `correct_own`; the first are from x.
    trains_own: ClassVar[bool] = False
    # Derived from the methods that a class overrides or inherits, so that unused steps cost nothing.
    keeps_state: ClassVar[bool] = False  # clients keep state between rounds (`init_client`)
    corrects: ClassVar[bool] = False  # gradients are changed (`correct`)
    perturbs: ClassVar[bool] = False  # gradients are taken beside the model (`perturbation`)
    sends_models: ClassVar[bool] = True  # a client sends its model as it is and nothing else; False with `finish`
    personal: ClassVar[bool] = False  # clients have models of their own (`model_for`)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.keeps_state = cls.init_client is not Algorithm.init_client
        cls.corrects = cls.correct is not Algorithm.correct
        cls.perturbs = cls.perturbation is not Algorithm.perturbation
        cls.sends_models = cls.finish is Algorithm.finish
        cls.personal = cls.model_for is not Algorithm.model_for

    def for_model(self, slots: Sequence[TensorSlot]) -> Algorithm:
        """Return the algorithm for a model whose parameters occupy `slots` of the flat vector."""
        return self

    def for_home(self, slots: Sequence[TensorSlot]) -> Algorithm:
        """Return the algorithm for a model whose layers named by `needs` occupy these slots."""
        return self

    def init(self, x: Tensor) -> Tensors:
        """Return the server's state before the first round."""
        return {"w": x}

    def init_client(self, x: Tensor) -> Tensors:
        """Return the state of a client that has not participated yet."""
        return {}

    def broadcast(self, server: Tensors) -> Tensors:
        """Return the tensors that are sent to a client."""
        return {"w": server["w"]}

    def model_for(self, client: Tensors, server: Tensors) -> Tensor:
        """Return the vector that a client starts from and is evaluated with.

        `client` is its state, `server` the broadcast. Overriding this gives clients models of their own. With
        `trains_own`, the client starts from the broadcast model, and then trains this one.
        """
        return server["w"]

    def correct(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> None:
        """Change the gradient of a local step in place. `server` is the broadcast."""

    def perturbation(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> Tensor:
        """Return the displacement from y at which a step's gradient is taken. g is the gradient of the same batch at y
        if `needs` names "gradient", which costs a second one, else it is undefined."""
        raise NotImplementedError

    def correct_own(self, g: Tensor, v: Tensor, server: Tensors) -> None:
        """Change the gradient of a step of the client's own model in place, with `trains_own`."""

    def penalty(self, features: Tensor, global_features: Tensor, previous_features: Tensor) -> Tensor:
        """Return the term added to the objective if `needs` names "features". The batch's features come from the
        current model, the broadcast model and, with "previous", the client's last model, `state["w"]`."""
        raise NotImplementedError

    def finish(self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors) -> Finished:
        """Return the tensors that the client sends after its last local step, and its new state.

        `extra` has "fisher" if `needs` names it: the mean over the client's samples of the squared gradient of
        each sample's cross-entropy at y; with `trains_own` it has "own", the client's own model after its steps.
        """
        return {"w": y}, {}

    def update(self, sent: Tensors, server: Tensors) -> Tensor | None:
        """Return y - x in float64, for metrics only, from a client's answer and the broadcast; None if unknown."""
        return sent["w"].double() - server["w"] if "w" in sent else None

    def weight(self, name: str, samples: int, steps: int) -> float:
        """Return the weight of a client's tensor `name` in the sum over the round's clients."""
        return float(samples)

    def aggregate(self, server: Tensors, sums: Tensors, totals: Totals, population: Population) -> Tensors:
        """Return the server's new state from weighted float64 sums and the sums of the weights.

        The round loop rounds the result once.
        """
        return {"w": sums["w"] / totals["w"]}

    def aggregate_updates(self, server: Tensors, updates: Sequence[ClientUpdate], context: ServerContext) -> Tensors:
        """Return the server's new state from the single updates, if `needs` names "clients"."""
        raise NotImplementedError

    def evaluated(self, server: Tensors) -> Tensor:
        """Return the vector that is evaluated and saved."""
        return server["w"]
