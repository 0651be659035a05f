"""Small networks that between them use every kernel of `step: lanes`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedrecall import CrossEntropy, FedAvg, Local, Objective
from fedrecall.client.lanes.lowering import Lowering, lower
from fedrecall.core.vector import FlatModel
from fedrecall.data.transform import Plain
from fedrecall.models.heads import with_head
from fedrecall.models.lenet import lenet
from fedrecall.optimisers import SGD

NETS = {
    "linear": ((20,), lambda: nn.Linear(20, 5)),
    "layers on features, without a bias": (
        (3, 4, 4),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 19, bias=False), nn.ReLU(), nn.Linear(19, 5)),
    ),
    "convolutions with padding": (
        (3, 9, 8),
        lambda: nn.Sequential(
            nn.Conv2d(3, 7, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(7, 9, (3, 2), padding=(1, 0)),
            nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(9 * 2 * 1, 5),
        ),
    ),
    "strides and groups": (
        (4, 11, 10),
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), nn.ReLU(),
            nn.Conv2d(6, 6, (3, 2), stride=(2, 3), groups=3), nn.ReLU(), nn.Conv2d(6, 8, 1, bias=False), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
        ),
    ),
    "overlapping windows and means": (
        (2, 13, 20),
        lambda: nn.Sequential(
            nn.AvgPool2d((1, 2)), nn.Conv2d(2, 6, 2), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(6, 5, 2), nn.ReLU(),
            nn.AvgPool2d(2, 1), nn.Conv2d(5, 5, 2), nn.Flatten(),
        ),
    ),
    "features of one length": (
        (3, 4, 4),
        lambda: with_head(
            nn.Sequential(nn.Flatten(), nn.Linear(48, 19), nn.ReLU(), nn.Linear(19, 5)), "normalised", 3.0
        ),
    ),
    "images of one length": ((20,), lambda: with_head(nn.Sequential(nn.Linear(20, 5)), "normalised")),
    "lenet": ((3, 32, 32), lambda: lenet((3, 32, 32), 5)),
}  # fmt: skip


def net(name: str) -> nn.Module:
    torch.manual_seed(3)
    return NETS[name][1]()


def batch(name: str, samples: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, *NETS[name][0], generator=random)
    return x, torch.randint(0, 5, (samples,), generator=random)


def lowering_of(flat: FlatModel, x: Tensor, objective: Objective | None = None, **given: Any) -> Lowering:
    """What kernels compute of a model; `given` may replace the arguments of `lower`."""
    rest = {"transform": Plain(), "local": Local(step="lanes"), "algorithm": FedAvg(), "optimiser": SGD()} | given
    return lower(flat, x[:2], objective=objective or CrossEntropy(), **rest)
