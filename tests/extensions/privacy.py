"""Clipped updates, and Gaussian noise on their sum."""

from dataclasses import dataclass

import torch

from fedrecall import Stage


@dataclass(frozen=True)
class ClipAndNoise(Stage):
    norm: float = 1.0
    noise: float = 0.01  # the deviation, as a share of `norm`

    def send(self, change, state, at):
        length = torch.cat([tensor.flatten() for tensor in change.values()]).norm()
        factor = min(1.0, self.norm / float(length.clamp(min=1e-12)))
        return {name: tensor * factor for name, tensor in change.items()}, {}

    def aggregate(self, sums, totals, at):
        random, noisy = at.stream(), {}
        for name, tensor in sums.items():
            noise = torch.from_numpy(random.normal(size=tensor.shape))
            noisy[name] = tensor + self.noise * self.norm * totals[name] / at.cohort * noise
        return noisy
