"""The models that a client may compare itself with while it trains: the one it was sent, and its own of before."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrecall.client.job import Job
from fedrecall.data.federation import Federation
from fedrecall.device import CPU, Device
from fedrecall.models.representation import Representation
from fedrecall.vector import Tensors


class FrozenModel:
    """A second model of the same kind that answers in eval mode and never trains."""

    def __init__(self, job: Job, federation: Federation, device: Device = CPU) -> None:
        self.flat = job.build_model(federation, device)
        wanted = "features" in job.algorithm.needs
        self._representation = Representation(self.flat.module, job.algorithm.representation) if wanted else None

    def load(self, w: Tensor, buffers: Tensors) -> None:
        self.flat.load(w, buffers)
        self.flat.module.eval()

    @torch.no_grad()
    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits, and the representation where the algorithm looks at it."""
        logits: Tensor = self.flat.module(x)
        return logits, self._representation.take() if self._representation else None
