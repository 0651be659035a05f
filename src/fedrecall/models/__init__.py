"""The models by name: functions of the sample shape and the number of classes."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fedrecall.config.components import Section
from fedrecall.models.embedding import MeanEmbedding, embedding
from fedrecall.models.heads import with_head
from fedrecall.models.lenet import LeNet, lenet
from fedrecall.models.mlp import mlp
from fedrecall.models.resnet import ResNet18, resnet18

MODELS: dict[str, Callable[..., nn.Module]] = {
    "lenet": lenet,
    "resnet18": resnet18,
    "mlp": mlp,
    "embedding": embedding,
}

MODEL: Section[nn.Module] = Section("model", MODELS, supplied=frozenset({"sample_shape", "num_classes"}))

__all__ = [
    "MODEL",
    "MODELS",
    "LeNet",
    "MeanEmbedding",
    "ResNet18",
    "embedding",
    "lenet",
    "mlp",
    "resnet18",
    "with_head",
]
