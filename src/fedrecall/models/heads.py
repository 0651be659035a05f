"""Heads: the last layer of a model, linear, normalised or with fixed class directions."""

from __future__ import annotations

import math
from typing import Annotated, Literal, get_args

import torch
from torch import Tensor, nn

from fedrecall.config.options import Scale
from fedrecall.errors import InputError, nearest

Head = Literal["linear", "normalised", "etf"]
HeadOption = Annotated[Head, "linear | normalised (by the features' length) | etf (fixed class directions)"]
ScaleOption = Annotated[Scale, "length of the features under a normalised head, initial length under etf"]

EPSILON = 1e-12  # added to the squared length, so that zero features have a gradient


def of_length(features: Tensor, length: float | Tensor) -> Tensor:
    """Return the features, [samples, features], scaled to a length.

    >>> of_length(torch.tensor([[3.0, 4.0]]), 10.0)
    tensor([[6., 8.]])
    """
    return features / (features.square().sum(1, keepdim=True) + EPSILON).sqrt() * length


class NormalisedHead(nn.Module):
    """f = W (c g / |g|), without bias: a class cannot win by the length of the features.

    As in Kim et al., "FedFN: Feature Normalization for Alleviating Data Heterogeneity Problem in Federated Learning",
    2023, arXiv 2308.09565, who take c = 1.
    """

    def __init__(self, features: int, num_classes: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.linear = nn.Linear(features, num_classes, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.linear(of_length(features, self.scale))
        return logits


class EtfHead(nn.Module):
    """f = s W' h(g) / |h(g)| with fixed W', whose columns form a simplex equiangular tight frame.

    Li et al., "No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and Fixed
    Classifier", ICCV 2023, arXiv 2303.10058.

    W' = sqrt(C / (C - 1)) P (I - 1 1' / C) with orthonormal P, drawn once; h is a linear layer and s is learned.
    """

    def __init__(self, features: int, num_classes: int, scale: float) -> None:
        super().__init__()
        if num_classes < 2:
            raise InputError(f"model.head is 'etf', which needs two classes or more; the data has {num_classes}")
        width = max(features, num_classes)  # C directions that are orthonormal before they are centred
        self.map = nn.Linear(features, width)
        self.scale = nn.Parameter(torch.full((1,), scale))
        self.directions = nn.Parameter(class_directions(width, num_classes), requires_grad=False)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = of_length(self.map(features), self.scale) @ self.directions
        return logits


def class_directions(width: int, num_classes: int) -> Tensor:
    """Return `num_classes` unit vectors as columns, each at the cosine -1 / (C - 1) to every other."""
    orthonormal: Tensor = torch.linalg.qr(torch.randn(width, num_classes, dtype=torch.float64))[0]
    centred = orthonormal - orthonormal.mean(1, keepdim=True)
    return (math.sqrt(num_classes / (num_classes - 1)) * centred).float()


def with_head(module: nn.Module, head: Head, scale: float = 10.0, layer: str | None = None) -> nn.Module:
    """Return the module with its last `nn.Linear`, or the one named `layer`, replaced by a head.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(784, 84), nn.ReLU(), nn.Linear(84, 10))
    >>> with_head(model, "normalised")[3]
    NormalisedHead(
      (linear): Linear(in_features=84, out_features=10, bias=False)
    )
    """
    if head not in get_args(Head):
        raise InputError(f"model.head is {head!r}; one of {', '.join(get_args(Head))} was expected")
    if head == "linear":
        return module
    linear = {name: inner for name, inner in module.named_modules() if isinstance(inner, nn.Linear) and name}
    if (layer is None and not linear) or (layer is not None and layer not in linear):
        raise InputError(f"the head {head!r} replaces an nn.Linear inside the model; {nearest(layer or '', linear)}")
    name = layer or [*linear][-1]
    last = linear[name]
    parent, _, attribute = name.rpartition(".")
    kind = NormalisedHead if head == "normalised" else EtfHead
    setattr(module.get_submodule(parent), attribute, kind(last.in_features, last.out_features, scale))
    return module
