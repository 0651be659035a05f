"""Adam as the local optimiser; its moments start anew every round."""

from dataclasses import dataclass

import torch

from fedrecall import Optimiser


@dataclass(frozen=True)
class Adam(Optimiser):
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def init(self, w):
        return {"m": torch.zeros_like(w), "v": torch.zeros_like(w), "t": torch.zeros(())}

    def step(self, w, g, state, lr):
        state["t"] += 1
        t = int(state["t"])
        m = state["m"].mul_(self.beta1).add_(g, alpha=1 - self.beta1)
        v = state["v"].mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
        scale = v.sqrt().div_((1 - self.beta2**t) ** 0.5).add_(self.eps)
        w.addcdiv_(m, scale, value=-lr / (1 - self.beta1**t))
