"""Adam, and AdamW with decoupled weight decay, with the bits of `torch.optim`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedrecall.core.vector import Tensors
from fedrecall.optimisers.base import Optimiser

# The smallest eps that float32 holds: the zeros that pad a flat vector are divided by it.
Epsilon = Annotated[float, Field(ge=1e-37, le=1, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class Adam(Optimiser):
    """Adam; weight decay is added to the gradient.

    Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, arXiv 1412.6980.

    m <- beta1 m + (1 - beta1) g; v <- beta2 v + (1 - beta2) g^2;
    w <- w - lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps).
    """

    beta1: Annotated[Decay, "of the mean of the gradients"] = 0.9
    beta2: Annotated[Decay, "of the mean of their squares"] = 0.999
    eps: Annotated[Epsilon, "added to the denominator"] = 1e-8

    def init(self, w: Tensor) -> Tensors:
        t = torch.zeros(*w.shape[:-1], 1, dtype=w.dtype, device=w.device)
        return {"m": torch.zeros_like(w), "v": torch.zeros_like(w), "t": t}

    def step(self, w: Tensor, g: Tensor, state: Tensors, lr: float) -> None:
        steps = state["t"].add_(1).flatten().tolist()
        m = state["m"].lerp_(g, 1 - self.beta1)
        v = state["v"].mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        scale = v.sqrt().div_(by_row(((1 - self.beta2**t) ** 0.5 for t in steps), state["t"])).add_(self.eps)
        w.addcdiv_(m * by_row((-lr / (1 - self.beta1**t) for t in steps), state["t"]), scale)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: w <- (1 - lr weight_decay) w, apart from the gradient.

    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, arXiv 1711.05101.
    """

    def decay(self, w: Tensor, g: Tensor) -> None:
        """Do nothing: `step` decays the weights."""

    def step(self, w: Tensor, g: Tensor, state: Tensors, lr: float) -> None:
        if self.weight_decay:
            w.mul_(1 - lr * self.weight_decay)
        super().step(w, g, state, lr)


def by_row(values: Iterable[float], like: Tensor) -> Tensor:
    """Return one value for each row, rounded once from Python's floats, as torch rounds its scalars."""
    return torch.tensor([*values], dtype=like.dtype, device=like.device).view(like.shape)
