"""The diagonal of the empirical Fisher information: the mean squared gradient of single samples."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fedrecall.core.vector import FlatModel
from fedrecall.models.build import strided_on_one_channel

CHUNK = 32  # samples whose gradients are held at once


def fisher(flat: FlatModel, chunks: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the Fisher diagonal of the cross-entropy over all samples of the chunks, in eval mode."""
    flat.module.eval()
    total, count = torch.zeros_like(flat.w), 0
    for x, target in chunks:
        total += squares(flat, x, target)
        count += len(target)
    return total / count


def squares(flat: FlatModel, x: Tensor, target: Tensor) -> Tensor:
    """Return the sum over samples of the squared per-sample gradient."""

    def loss(w: Tensor, x: Tensor, target: Tensor) -> Tensor:
        parameters = {slot.name: slot.view(w) for slot in flat.parameter_slots}
        logits = functional_call(flat.module, parameters, (x[None],))
        return F.cross_entropy(logits, target[None])

    if strided_on_one_channel(flat.module):  # which torch computes wrongly when they are mapped
        return one_by_one(flat, x, target)
    try:
        gradients: Tensor = vmap(grad(loss), in_dims=(None, 0, 0))(flat.w, x, target)
    except RuntimeError:  # a model that vmap does not support, such as a GRU
        return one_by_one(flat, x, target)
    return gradients.square().sum(0)


def one_by_one(flat: FlatModel, x: Tensor, target: Tensor) -> Tensor:
    total = torch.zeros_like(flat.w)
    for i in range(len(target)):
        flat.g.zero_()
        F.cross_entropy(flat.module(x[i : i + 1]), target[i : i + 1]).backward()  # type: ignore[no-untyped-call]
        total += flat.g.square()
    return total
