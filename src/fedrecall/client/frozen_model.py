"""Frozen models that a training client compares itself with: the one it was sent, and its previous one."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrecall.backend.device import CPU, Device
from fedrecall.client.job import Job
from fedrecall.core.vector import Tensors
from fedrecall.data.federation import Federation
from fedrecall.models.representation import Representation


class FrozenModel:
    """A second instance of the model, in eval mode and never trained."""

    def __init__(self, job: Job, federation: Federation, device: Device = CPU) -> None:
        self.flat = job.build_model(federation, device)
        wanted = "features" in job.algorithm.needs
        self._representation = Representation(self.flat.module, job.algorithm.representation) if wanted else None

    def load(self, w: Tensor, buffers: Tensors) -> None:
        self.flat.load(w, buffers)
        self.flat.module.eval()

    @torch.no_grad()
    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits, and the representation if the algorithm needs it."""
        logits: Tensor = self.flat.module(x)
        return logits, self._representation.take() if self._representation else None
