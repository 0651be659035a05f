"""Local steps: the protocol, and its implementation by eager PyTorch, which is correct for any model.

The other implementation is `lanes.samples.LanesStep`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedrecall.client.batch import Batch
from fedrecall.client.job import Job
from fedrecall.client.loss_scale import LossScale
from fedrecall.core.rng import generator_states, set_generator_states
from fedrecall.core.vector import FlatModel, Tensors
from fedrecall.models.representation import Representation
from fedrecall.optimisers.clipping import clip_gradient
from fedrecall.recipe.settings import Local


class Step(Protocol):
    """Computes the model's gradient `g` from a batch and updates its weights `w`."""

    reads_bytes: bool  # takes images as stored bytes

    def begin_client(self, lr: float, client: Tensors, moments: Tensors | None = None) -> None:
        """Start a client's local training; `client` holds the tensors that the objective prepared for it, `moments`
        those that its optimiser continues with."""

    def __call__(self, batch: Batch) -> Tensor:
        """Fill `g` with the gradient of a batch and return its loss, which is valid until the next step."""

    def decay(self) -> None:
        """Add the weight decay to `g`."""

    def descend(self) -> None:
        """Update `w` by a step along `g`."""

    @property
    def moments(self) -> Tensors:
        """Return the optimiser's moments after the last step."""


class ExactStep:
    """Computes loss and gradient by PyTorch, and steps by the job's optimiser."""

    reads_bytes = False

    def __init__(self, flat: FlatModel, job: Job) -> None:
        self.flat, self.objective, self.algorithm = flat, job.objective.on(flat.w.device), job.algorithm
        self.local, self.optimiser = job.local, job.optimiser
        wanted = "features" in job.algorithm.needs | job.objective.needs
        self.representation = Representation(flat.module, job.algorithm.representation) if wanted else None
        self._lr, self.moments = 0.0, Tensors()
        self._scale: LossScale | None = None  # float16 only

    def begin_client(self, lr: float, client: Tensors, moments: Tensors | None = None) -> None:
        # The stored ones are cloned, because steps change them in place.
        stored = {name: tensor.clone() for name, tensor in (moments or {}).items()}
        self._lr, self.moments = lr, self.optimiser.init(self.flat.w) | stored
        self._scale = LossScale() if self.local.precision == "float16" else None

    def __call__(self, batch: Batch) -> Tensor:
        if self._scale is not None:
            loss = self._scaled(self._scale, batch)
        else:
            loss = self._loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
        if self.local.clip_norm is not None:
            clip_gradient(self.flat.g, self.local.clip_norm)
        return loss.detach()

    def decay(self) -> None:
        self.optimiser.decay(self.flat.w, self.flat.g)

    def descend(self) -> None:
        self.optimiser.step(self.flat.w, self.flat.g, self.moments, self._lr)

    def _loss(self, batch: Batch) -> Tensor:
        self.flat.g.zero_()
        with precision(self.local, batch.x.device):
            logits = self.flat.module(batch.x)
        features = self.representation.take() if self.representation else None
        return batch.loss(self.objective, self.algorithm, logits, features)

    def _scaled(self, scale: LossScale, batch: Batch) -> Tensor:
        """Compute loss and gradient in float16; on overflow, halve the scale and repeat."""
        start = Snapshot.of(self.flat)
        while True:
            loss = self._loss(batch)
            (loss * scale.value).backward()  # type: ignore[no-untyped-call]
            self.flat.g.mul_(1 / scale.value)
            if bool(self.flat.g.isfinite().all()):
                scale.held()
                return loss.detach()
            if not scale.overflowed():
                return loss.detach()
            start.restore(self.flat)


@dataclass(frozen=True)
class Snapshot:
    """The state that a forward pass changes: buffers and default generators."""

    buffers: Tensors
    generators: list[Tensor]

    @classmethod
    def of(cls, flat: FlatModel) -> Snapshot:
        return cls(flat.buffers(), generator_states(flat.w.device))

    def restore(self, flat: FlatModel) -> None:
        flat.load(flat.w, self.buffers)
        set_generator_states(flat.w.device, self.generators)


def precision(local: Local, device: torch.device) -> AbstractContextManager[Any]:
    return nullcontext() if local.precision == "float32" else mixed_precision(local.precision, device.type)


@contextmanager
def mixed_precision(precision: str, device_type: str) -> Iterator[None]:
    try:
        with torch.autocast(device_type, getattr(torch, precision)):
            yield
    finally:
        # Within an outer autocast, even a disabled one, torch would reuse the cast weights in later passes.
        torch.clear_autocast_cache()
