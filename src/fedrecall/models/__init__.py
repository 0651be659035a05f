"""The models, by name: functions of the sample's shape and the number of classes."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fedrecall.models.lenet import LeNet, lenet
from fedrecall.models.mlp import mlp

MODELS: dict[str, Callable[..., nn.Module]] = {
    "lenet": lenet,
    "mlp": mlp,
}

__all__ = ["MODELS", "LeNet", "lenet", "mlp"]
