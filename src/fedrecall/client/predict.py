"""What a model makes of each sample: one forward pass over pooled data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedrecall.data.federation import Federation
from fedrecall.data.samples import Samples
from fedrecall.models.build import model_input
from fedrecall.vector import FlatModel

EVALUATION_BATCH = 256  # fixed, because kernels may round differently for other sizes

Judged = dict[str, np.ndarray]  # by sample: correct, nll, confidence and, where they are asked for, logits


def pooled(federation: Federation, split: str, clients: Sequence[int] = ()) -> tuple[Samples, np.ndarray]:
    """The pooled samples of a split, as a source and positions in it; of "validation", only of these clients."""
    if not clients:
        return federation.pool(split)
    assert split == "validation"
    return federation.train, np.concatenate([federation.validation_indices(client) for client in clients])


@dataclass(frozen=True)
class Judge:
    """Evaluates a model as it is, in eval mode, on the pooled samples of a federation's splits."""

    flat: FlatModel
    federation: Federation

    @torch.no_grad()
    def __call__(
        self, split: str, clients: Sequence[int] = (), part: slice | None = None, logits: bool = False
    ) -> Judged:
        """For each sample of a split, or of a part of it: is the model right, the negative log-likelihood of the
        label, and the probability of the class that the model chose."""
        source, positions = pooled(self.federation, split, clients)
        self.flat.module.eval()
        chosen = torch.from_numpy(positions if part is None else positions[part])
        batches = [self._batch(source, chunk, logits) for chunk in torch.split(chosen, EVALUATION_BATCH)]
        return {name: torch.cat([batch[name] for batch in batches]).numpy() for name in batches[0]}

    def _batch(self, source: Samples, positions: Tensor, with_logits: bool) -> dict[str, Tensor]:
        x, target = source.gather(positions)
        logits = self.flat.module(model_input(self.federation.transform(x), self.flat.w.dtype)).float()
        judged = {
            "correct": logits.argmax(1) == target,
            "nll": nn.functional.cross_entropy(logits, target, reduction="none"),
            "confidence": logits.softmax(1).amax(1),
        }
        return judged | {"logits": logits} if with_logits else judged
