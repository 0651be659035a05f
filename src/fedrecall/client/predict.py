"""Evaluation of a model by a forward pass over pooled samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedrecall.client.batch_loader import BatchLoader
from fedrecall.client.predictions import Predictions
from fedrecall.core.vector import FlatModel
from fedrecall.data.samples import Samples

if TYPE_CHECKING:
    from fedrecall.client.lanes.samples import LanesStep

EVALUATION_BATCH = 256  # fixed, because kernels may round differently for other sizes


@dataclass(frozen=True)
class Predictor:
    """Evaluates a model in eval mode on the pooled samples of a federation's splits."""

    flat: FlatModel
    inputs: BatchLoader
    shift: Tensor | None = None  # added to the logits, for the class shares that evaluation assumes
    lanes: LanesStep | None = None  # its kernels compute the forward pass, if given

    @torch.no_grad()
    def __call__(
        self, split: str, clients: Sequence[int] = (), part: slice | None = None, logits: bool = False
    ) -> Predictions:
        """Return predictions for a split or a part of it; `clients` restricts "validation" to these clients."""
        source, positions = self.inputs.federation.pool(split, clients)
        self.flat.module.eval()
        chosen = torch.from_numpy(positions if part is None else positions[part])
        batches = [self._batch(source, chunk, logits) for chunk in torch.split(chosen, EVALUATION_BATCH)]
        found = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
        return Predictions(**{name: tensor.cpu().numpy() for name, tensor in found.items()})

    def _batch(self, source: Samples, positions: Tensor, with_logits: bool) -> dict[str, Tensor]:
        read = self.inputs.stored if self.lanes and self.lanes.reads_bytes else self.inputs
        x, target = read(source, positions)
        logits = self.lanes.predict(x) if self.lanes else self.flat.module(x).float()
        if self.shift is not None:
            logits = logits + self.shift
        found = {
            "correct": logits.argmax(1) == target,
            "nll": nn.functional.cross_entropy(logits, target, reduction="none"),
            "confidence": logits.softmax(1).amax(1),
        }
        return found | {"logits": logits} if with_logits else found
