"""The local optimiser, on flat vectors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class SGD:
    """Plain SGD with momentum and weight decay on flat vectors; momentum starts at zero every round."""

    lr: float
    momentum: float
    weight_decay: float
    velocity: Tensor | None = None

    def decay(self, w: Tensor, g: Tensor) -> None:
        if self.weight_decay:
            g.add_(w, alpha=self.weight_decay)

    def step(self, w: Tensor, g: Tensor) -> None:
        if self.momentum:
            if self.velocity is None:
                self.velocity = g.clone()
            else:
                self.velocity.mul_(self.momentum).add_(g)
            g = self.velocity
        w.add_(g, alpha=-self.lr)
