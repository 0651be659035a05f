"""Clipping of a gradient's norm."""

from __future__ import annotations

import torch
from torch import Tensor


def clip_gradient(g: Tensor, most: float) -> None:
    """Scale `g` in place to a Euclidean norm of at most `most`, as `torch.nn.utils.clip_grad_norm_` does.

    The norm is that of the flat vector, one for each row. torch takes the norm of the parameters' norms, which is
    the same number up to rounding.

    >>> g = torch.tensor([3.0, 4.0])
    >>> clip_gradient(g, most=1.0)
    >>> [round(entry, 4) for entry in g.tolist()]
    [0.6, 0.8]
    """
    norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    g.mul_((most / (norm + 1e-6)).clamp_(max=1.0))
