"""Counts and shares of the classes in a client's labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedrecall.errors import InputError

ArrayLike = Tensor | npt.NDArray[Any] | Sequence[Any]


def shares(counts: Tensor) -> Tensor:
    """Return class counts as float32 shares, divided in float64; leading dimensions are clients."""
    return (counts.double() / counts.sum(-1, keepdim=True)).float()


@dataclass(frozen=True)
class Labels:
    """Counts and shares of one client's training labels."""

    counts: Tensor  # [C] int64: samples of each class
    beta: Tensor  # [C] float32: their shares
    pooled: Tensor | None = None  # [C] float64: shares in all clients' labels, for objectives that need them

    @classmethod
    def of(cls, counts: Tensor, pooled: Tensor | None = None) -> Labels:
        return cls(counts, shares(counts), pooled)


def class_proportions(labels: ArrayLike, num_classes: int, ignore_index: int = -100) -> Tensor:
    """Return the float32 share of each class in `labels` (of any shape), without ignored labels.

    >>> class_proportions([0, 0, 2, -100], num_classes=4)
    tensor([0.6667, 0.0000, 0.3333, 0.0000])
    """
    values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.size and not np.issubdtype(values.dtype, np.integer):
        raise InputError(f"Labels must be integers, not {values.dtype} such as {values.flat[0]}.")
    kept = values[values != ignore_index].astype(np.int64)
    if not kept.size:
        raise InputError(f"There is no label to count: {values.size} labels were given, all of them ignored.")
    outside = kept[(kept < 0) | (kept >= num_classes)]
    if outside.size:
        raise InputError(f"Label {outside[0]} is out of range: the classes are 0 to {num_classes - 1}.")
    beta = shares(torch.from_numpy(np.bincount(kept, minlength=num_classes)))
    return beta.to(labels.device) if isinstance(labels, Tensor) else beta
