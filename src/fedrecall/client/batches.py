"""The division of a client's training samples into the batches of local steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrecall.core.rng import Shuffle
from fedrecall.recipe.settings import Local


@dataclass(frozen=True)
class LocalPlan:
    """The steps of a client's local training in one round.

    >>> plan = LocalPlan.of(Local(epochs=2, batch_size=40, partial_batch="keep"), samples=100)
    >>> plan.steps, plan.samples_seen                          # twice 40, 40 and 20
    (6, 200)
    """

    samples: int  # number of the client's training samples
    size: int  # samples of a full batch
    per_epoch: int  # steps
    steps: int

    @classmethod
    def of(cls, local: Local, samples: int, least: int = 1, steps: int = 0) -> LocalPlan:
        """Return the plan of a client; a non-zero `steps` overrides the settings.

        A partial batch at the end of an epoch is dropped, unless it is the only batch, or the settings keep it and
        it has at least `least` samples.
        """
        size = min(local.batch_size, samples)
        whole, last = divmod(samples, size)
        per_epoch = whole + (local.partial_batch == "keep" and last >= least)
        return cls(samples, size, per_epoch, steps or local.steps or (local.epochs or 0) * per_epoch)

    @property
    def samples_seen(self) -> int:
        """Return the total number of samples over all steps."""
        epochs, rest = divmod(self.steps, self.per_epoch)
        return epochs * min(self.per_epoch * self.size, self.samples) + rest * self.size

    def batches(self, indices: np.ndarray, random: Shuffle) -> Iterator[Tensor]:
        """Yield the positions of each step's samples, in a new order every epoch."""
        left = self.steps
        while left > 0:
            order = torch.from_numpy(random.permutation(indices))
            for step in range(min(self.per_epoch, left)):
                yield order[step * self.size : (step + 1) * self.size]
            left -= self.per_epoch
