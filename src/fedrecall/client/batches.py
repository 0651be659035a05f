"""The samples of each local step, and how many steps there are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedrecall.recipe.settings import Local
from fedrecall.rng import Shuffle


def batches(indices: np.ndarray, local: Local, random: Shuffle, least: int = 1) -> Iterator[Tensor]:
    """Positions of the samples of each step: a new order every epoch, in batches of at least `least` samples.

    A last partial batch is dropped (or kept, as the settings say) unless it is the only one.
    """
    size = min(local.batch_size, len(indices))
    per_epoch = steps_per_epoch(len(indices), local, least)
    left = local.steps or (local.epochs or 0) * per_epoch
    while left > 0:
        order = torch.from_numpy(random.permutation(indices))
        for step in range(min(per_epoch, left)):
            yield order[step * size : (step + 1) * size]
        left -= per_epoch


def steps_per_epoch(samples: int, local: Local, least: int = 1) -> int:
    size = min(local.batch_size, samples)
    whole, last = divmod(samples, size)
    return whole + (local.partial_batch == "keep" and last >= least)
