"""What a model gets right: one forward pass over pooled data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedrecall.building import model_input
from fedrecall.data.federation import Federation
from fedrecall.data.samples import Samples
from fedrecall.vector import FlatModel

EVALUATION_BATCH = 256  # fixed, because kernels may round differently for other sizes


@dataclass(frozen=True)
class Judge:
    """Evaluates a model as it is, in eval mode, on the pooled samples of a federation's splits."""

    flat: FlatModel
    federation: Federation

    @torch.no_grad()
    def __call__(self, split: str, part: slice | None = None) -> tuple[np.ndarray, np.ndarray]:
        """For each sample of a split, or of a part of it: is the model right, and its loss."""
        source, positions = self.federation.pool(split)
        self.flat.module.eval()
        chosen = torch.from_numpy(positions if part is None else positions[part])
        results = [self._batch(source, chunk) for chunk in torch.split(chosen, EVALUATION_BATCH)]
        correct, losses = (torch.cat(parts).numpy() for parts in zip(*results))
        return correct, losses

    def _batch(self, source: Samples, positions: Tensor) -> tuple[Tensor, Tensor]:
        x, target = source.gather(positions)
        logits = self.flat.module(model_input(self.federation.transform(x), self.flat.w.dtype)).float()
        return logits.argmax(1) == target, nn.functional.cross_entropy(logits, target, reduction="none")
