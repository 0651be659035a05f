"""How a client's training samples become local steps: how many there are, and the samples of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrecall.recipe.settings import Local
from fedrecall.rng import Shuffle


@dataclass(frozen=True)
class LocalPlan:
    """The steps of a client's local training in one round.

    >>> plan = LocalPlan.of(Local(epochs=2, batch_size=40, partial_batch="keep"), samples=100)
    >>> plan.steps, plan.samples_seen                          # twice 40, 40 and 20
    (6, 200)
    """

    samples: int  # that the client has
    size: int  # of a whole batch
    per_epoch: int  # steps
    steps: int

    @classmethod
    def of(cls, local: Local, samples: int, least: int = 1, steps: int = 0) -> LocalPlan:
        """Return the plan of a client; `steps` in place of those that the settings say.

        A last partial batch is dropped, or kept if the settings say so and it has at least `least` samples, unless
        it is the only one.
        """
        size = min(local.batch_size, samples)
        whole, last = divmod(samples, size)
        per_epoch = whole + (local.partial_batch == "keep" and last >= least)
        return cls(samples, size, per_epoch, steps or local.steps or (local.epochs or 0) * per_epoch)

    @property
    def samples_seen(self) -> int:
        """Return the number of samples in all steps together."""
        epochs, rest = divmod(self.steps, self.per_epoch)
        return epochs * min(self.per_epoch * self.size, self.samples) + rest * self.size

    def batches(self, indices: np.ndarray, random: Shuffle) -> Iterator[Tensor]:
        """Yield the positions of each step's samples: a new order every epoch."""
        left = self.steps
        while left > 0:
            order = torch.from_numpy(random.permutation(indices))
            for step in range(min(self.per_epoch, left)):
                yield order[step * self.size : (step + 1) * self.size]
            left -= self.per_epoch
