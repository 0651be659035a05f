"""The model and the local steps of the bare loop, as most would write them: nothing but PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from work import Work


class LeNet(nn.Module):
    """As most would write it: ReLU, then pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        logits: torch.Tensor = self.fc3(F.relu(self.fc2(x)))
        return logits


def model(work: Work) -> nn.Module:
    torch.manual_seed(0)
    return LeNet() if work.model == "lenet" else nn.Linear(512, 10)


def normalised(batch: torch.Tensor) -> torch.Tensor:
    """Images are kept as bytes, and made numbers batch by batch; embeddings are numbers already."""
    return ((batch.float() / 255 - 0.5) / 0.25).permute(0, 3, 1, 2) if batch.dtype == torch.uint8 else batch


def train(net: nn.Module, x: torch.Tensor, y: torch.Tensor, work: Work, order: torch.Tensor) -> int:
    """A client's local steps; how many there were."""
    optimiser = torch.optim.SGD(net.parameters(), lr=work.lr)
    steps = 0
    per_epoch = len(y) // work.batch_size
    while steps < work.steps:
        at = steps % per_epoch * work.batch_size
        chosen = order[at : at + work.batch_size]
        optimiser.zero_grad()
        F.cross_entropy(net(normalised(x[chosen])), y[chosen]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        steps += 1
    return steps
