"""A batch: the samples of one local step and the other inputs of its loss."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fedrecall.algorithms.base import Algorithm
from fedrecall.core.vector import Tensors
from fedrecall.objectives.base import Objective


@dataclass
class Batch:
    """The inputs of one step's loss, apart from the model."""

    x: Tensor
    target: Tensor
    client: Tensors = field(default_factory=dict)  # tensors that the objective prepared for the client
    teacher: Tensor | None = None  # logits of the model that the client was sent
    global_features: Tensor | None = None  # of the model that the client was sent
    previous_features: Tensor | None = None  # of the client's model after its previous round

    def loss(self, objective: Objective, algorithm: Algorithm, logits: Tensor, features: Tensor | None) -> Tensor:
        """Return the objective plus its regulariser and the algorithm's penalty, if they have one."""
        loss = objective(logits, self.target, self.client, self.teacher)
        if features is None:
            return loss
        if "features" in objective.needs:
            loss = loss + objective.regulariser(features)
        if "features" not in algorithm.needs:
            return loss
        assert self.global_features is not None
        assert self.previous_features is not None
        return loss + algorithm.penalty(features, self.global_features, self.previous_features)

    def tensors(self) -> Tensors:
        """Return all tensors by name; `of` restores the batch from them."""
        named = {"teacher": self.teacher, "global_features": self.global_features}
        named |= {"previous_features": self.previous_features}
        client = {f"client.{name}": tensor for name, tensor in self.client.items()}
        there = {name: tensor for name, tensor in named.items() if tensor is not None}
        return {"x": self.x, "target": self.target, **client, **there}

    @classmethod
    def of(cls, tensors: Tensors) -> Batch:
        client = {name.removeprefix("client."): t for name, t in tensors.items() if name.startswith("client.")}
        rest = {name: tensor for name, tensor in tensors.items() if not name.startswith("client.")}
        return cls(rest.pop("x"), rest.pop("target"), client, **rest)
