"""Plain SGD with momentum."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, zeros_like

from fedrecall.core.vector import Tensors
from fedrecall.optimisers.base import Optimiser


@dataclass(frozen=True)
class SGD(Optimiser):
    """v <- momentum v + g; w <- w - lr v, with v = g in the first step."""

    momentum: float = 0.0

    def init(self, w: Tensor) -> Tensors:
        return {"velocity": zeros_like(w)} if self.momentum and self.state != "reset" else {}

    def step(self, w: Tensor, g: Tensor, state: Tensors, lr: float) -> None:
        if self.momentum:
            if "velocity" in state:
                g = state["velocity"].mul_(self.momentum).add_(g)
            else:
                g = state["velocity"] = g.clone()
        w.add_(g, alpha=-lr)

    def moved(self, steps: int, lr: float, mu: float = 0.0) -> float:
        """Return |a|_1, which is `steps` without momentum and `mu`.

        >>> SGD().moved(3, lr=0.1), SGD(momentum=0.5).moved(3, lr=0.1)      # 1 + 1 + 1, and 1 + 1.5 + 1.75
        (3.0, 4.25)
        """
        total = velocity = 0.0
        for _ in range(steps):
            velocity = self.momentum * velocity + 1 - lr * mu * total
            total += velocity
        return total
