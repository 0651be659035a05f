"""PyTorch's own step: the loss and the gradient of one batch by the model's forward and autograd, eagerly.

It is right for any model, whatever that hides. The other way to take a step is `lanes.samples.LanesStep`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedrecall.algorithms.base import Algorithm
from fedrecall.client.loss_scale import LossScale
from fedrecall.client.sgd import SGD
from fedrecall.models.representation import Representation
from fedrecall.objectives.base import Objective
from fedrecall.recipe.settings import Local
from fedrecall.vector import FlatModel, Tensors


@dataclass(frozen=True)
class Compared:
    """The outputs of other models for a batch, where the objective or the algorithm asks for them."""

    teacher: Tensor | None = None
    global_features: Tensor | None = None
    previous_features: Tensor | None = None

    def tensors(self) -> Tensors:
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}


NOTHING = Compared()


class ExactStep:
    """Fills `flat.g` with the gradient of a batch and returns its loss."""

    reads_bytes = False

    def __init__(self, flat: FlatModel, objective: Objective, algorithm: Algorithm, local: Local) -> None:
        self.flat, self.objective, self.algorithm, self.local = flat, objective, algorithm, local
        wanted = "features" in algorithm.needs
        self.representation = Representation(flat.module, algorithm.representation) if wanted else None
        self._client: Tensors = {}
        self._scale: LossScale | None = None  # of float16

    def begin_client(self, client: Tensors) -> None:
        """Take what the objective has prepared for the client whose steps follow; nothing is kept of the last."""
        self._client = client
        self._scale = LossScale() if self.local.precision == "float16" else None

    def __call__(self, x: Tensor, target: Tensor, compared: Compared = NOTHING) -> Tensor:
        if self._scale is not None:
            return self._scaled(self._scale, x, target, compared)
        loss = self._loss(x, target, compared)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _loss(self, x: Tensor, target: Tensor, compared: Compared) -> Tensor:
        self.flat.g.zero_()
        with precision(self.local, x.device):
            logits = self.flat.module(x)
        features = self.representation.take() if self.representation else None
        return full_loss(self.objective, self.algorithm, logits, features, target, self._client, compared)

    def _scaled(self, scale: LossScale, x: Tensor, target: Tensor, compared: Compared) -> Tensor:
        """Take a step in float16, again with a smaller scale where its gradient overflows."""
        start = Snapshot.of(self.flat)
        while True:
            loss = self._loss(x, target, compared)
            (loss * scale.value).backward()  # type: ignore[no-untyped-call]
            self.flat.g.mul_(1 / scale.value)
            if bool(self.flat.g.isfinite().all()):
                scale.held()
                return loss.detach()
            if not scale.overflowed():
                return loss.detach()
            start.restore(self.flat)

    def optimiser(self, lr: float) -> SGD:
        return SGD(lr, self.local.momentum, self.local.weight_decay)


def full_loss(
    objective: Objective,
    algorithm: Algorithm,
    logits: Tensor,
    features: Tensor | None,
    target: Tensor,
    client: Tensors,
    compared: Compared,
) -> Tensor:
    """Return the objective plus the algorithm's penalty where it has one."""
    loss = objective(logits, target, client, compared.teacher)
    if features is None:
        return loss
    assert compared.global_features is not None
    assert compared.previous_features is not None
    return loss + algorithm.penalty(features, compared.global_features, compared.previous_features)


@dataclass(frozen=True)
class Snapshot:
    """What a forward pass changes: buffers and torch's default generator."""

    buffers: Tensors
    generator: Tensor

    @classmethod
    def of(cls, flat: FlatModel) -> Snapshot:
        return cls(flat.buffers(), torch.get_rng_state())

    def restore(self, flat: FlatModel) -> None:
        flat.load(flat.w, self.buffers)
        torch.set_rng_state(self.generator)


def precision(local: Local, device: torch.device) -> AbstractContextManager[Any]:
    return nullcontext() if local.precision == "float32" else mixed_precision(local.precision, device.type)


@contextmanager
def mixed_precision(precision: str, device_type: str) -> Iterator[None]:
    try:
        with torch.autocast(device_type, getattr(torch, precision)):
            yield
    finally:
        # Within an outer autocast, though that is switched off, torch would keep the rounded weights for later.
        torch.clear_autocast_cache()
