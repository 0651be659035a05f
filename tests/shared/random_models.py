"""Small random models. The structure of each is a function of a number, its weights are drawn by torch.

`plain` models have nothing but layers that there are kernels for; the others have whatever layers there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn

Shape = tuple[int, ...]
VOCABULARY = 13  # token ids of texts
ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.LeakyReLU)


class Residual(nn.Module):
    """x + body(x)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Tied(nn.Module):
    """Two square linear layers that share a weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Recurrent(nn.Module):
    """The last output of a GRU over a sequence of vectors [samples, time, features]."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x)[0][:, -1]


class Mean(nn.Module):
    """The mean over time."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Layers:
    """Layers one after the other, and the shape of a sample behind them."""

    def __init__(self, shape: Shape, tokens: bool = False) -> None:
        self.made: list[nn.Module] = []
        self.shape, self._dtype = shape, torch.int64 if tokens else torch.float32

    def add(self, *layers: nn.Module) -> None:
        for layer in layers:
            self.shape = self._shape_behind(layer)
            self.made.append(layer)
            self._dtype = torch.float32

    def _shape_behind(self, layer: nn.Module) -> Shape:
        if isinstance(layer, nn.LazyLinear):  # which would not be lazy any more
            return (layer.out_features,)
        with torch.no_grad():
            found = layer.eval()(torch.zeros(2, *self.shape, dtype=self._dtype)).shape[1:]
        layer.train()
        return tuple(found)


def build(number: int, shape: Shape, classes: int, *, tokens: bool, plain: bool) -> nn.Module:
    """Return the model of a number for samples of a shape; its weights come from torch's default generator."""
    random = np.random.default_rng([number, 1])
    layers = Layers(shape, tokens)
    if tokens:
        text_layers(random, layers)
    elif len(shape) == 3:
        image_layers(random, layers, plain=plain)
    elif not plain and shape[0] < 12 and random.random() < 0.4:
        sequence_layers(random, layers)
    head_layers(random, layers, classes, plain=plain)
    model = nn.Sequential(*layers.made)
    return model if plain else frozen_in_part(random, model)


def image_layers(random: Generator, layers: Layers, *, plain: bool) -> None:
    """Blocks of a convolution, a norm, an activation and a pooling, each but the first perhaps missing."""
    if not plain and random.random() < 0.1:  # its input needs no gradient
        layers.add(nn.GroupNorm(layers.shape[0], layers.shape[0]))
    for _ in range(random.integers(1, 4)):
        layers.add(convolution(random, layers.shape, plain=plain))
        if not plain and random.random() < 0.6:
            layers.add(image_norm(random, layers.shape))
        pooled_first = random.random() < 0.3
        if pooled_first:
            layers.add(*pooling(random, layers.shape, plain=plain))
        layers.add(activation(random, plain=plain))
        if not pooled_first:
            layers.add(*pooling(random, layers.shape, plain=plain))
        if not plain and random.random() < 0.2:
            layers.add(residual(random, layers.shape[0]))
        if not plain and random.random() < 0.15:
            layers.add(nn.Dropout(0.3))
    if random.random() < 0.3:
        layers.add(nn.AdaptiveAvgPool2d(1))
    layers.add(nn.Flatten())


def convolution(random: Generator, shape: Shape, *, plain: bool) -> nn.Conv2d:
    channels, *size = shape
    kernel = [int(random.integers(1, min(5, side) + 1)) for side in size]
    padding = [int(random.integers(0, k)) for k in kernel]
    stride = [int(random.choice([1, 1, 1, 2, 3])) for _ in size] if kernel != [1, 1] else [1, 1]
    groups = int(random.choice([g for g in (1, 1, 2, 3) if channels % g == 0]))
    dilates = not plain and random.random() < 0.1 and all(2 * k - 1 <= side for k, side in zip(kernel, size))
    return nn.Conv2d(
        channels, groups * int(random.integers(1, 7)), tuple(kernel), tuple(stride), tuple(padding),
        dilation=2 if dilates else 1, groups=groups, bias=bool(random.random() < 0.8),
    )  # fmt: skip


def image_norm(random: Generator, shape: Shape) -> nn.Module:
    channels, several = shape[0], math.prod(shape[1:]) > 1  # torch refuses statistics of one number
    kinds: list[Callable[[], nn.Module]] = [
        lambda: nn.BatchNorm2d(channels),
        lambda: nn.GroupNorm(math.gcd(channels, 2) if several else 1, channels),
        lambda: nn.LayerNorm(shape),
    ]
    if not several and channels == 1:
        return nn.LayerNorm(shape)
    if several:
        kinds.append(lambda: nn.BatchNorm2d(channels, track_running_stats=False))
        kinds.append(lambda: nn.GroupNorm(channels, channels, affine=False))
        kinds.append(lambda: nn.InstanceNorm2d(channels, affine=True))
        kinds.append(lambda: nn.InstanceNorm2d(channels, track_running_stats=True))
    return kinds[random.integers(len(kinds))]()


def activation(random: Generator, *, plain: bool) -> nn.Module:
    return nn.ReLU() if plain or random.random() < 0.6 else ACTIVATIONS[random.integers(len(ACTIVATIONS))]()


def pooling(random: Generator, shape: Shape, *, plain: bool) -> list[nn.Module]:
    """A max- or mean-pooling by windows that fit, or none."""
    window = tuple(int(random.integers(1, min(3, side) + 1)) for side in shape[1:])
    stride = tuple(int(random.integers(1, side + 1)) for side in window) if random.random() < 0.3 else window
    padding = 0 if plain or random.random() < 0.8 else tuple(side // 2 for side in window)
    kind = random.choice(["none", "max", "max", "mean"])
    if kind == "none":
        return []
    if kind == "max":
        return [nn.MaxPool2d(window, stride, padding, ceil_mode=not plain and bool(random.random() < 0.1))]
    return [nn.AvgPool2d(window, stride, padding)]


def residual(random: Generator, channels: int) -> Residual:
    body = [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    return Residual(nn.Sequential(*body, *([nn.BatchNorm2d(channels)] if random.random() < 0.4 else [])))


def text_layers(random: Generator, layers: Layers) -> None:
    width = int(random.integers(3, 9))
    layers.add(nn.Embedding(VOCABULARY, width, padding_idx=0 if random.random() < 0.5 else None))
    layers.add(Recurrent(width, width) if random.random() < 0.2 else Mean())


def sequence_layers(random: Generator, layers: Layers) -> None:
    """A GRU over a vector's numbers, one at a time."""
    layers.add(nn.Unflatten(1, (layers.shape[0], 1)), Recurrent(1, int(random.integers(2, 6))))


def head_layers(random: Generator, layers: Layers, classes: int, *, plain: bool) -> None:
    """Linear layers from a vector to the logits."""
    for _ in range(random.integers(0, 3)):
        width = int(random.integers(2, 20))
        lazy = not plain and random.random() < 0.05
        bias = bool(random.random() < 0.8)
        layers.add(nn.LazyLinear(width, bias) if lazy else nn.Linear(layers.shape[0], width, bias))
        if not plain and random.random() < 0.4:
            layers.add(vector_norm(random, width))
        layers.add(activation(random, plain=plain))
        if not plain and random.random() < 0.15:
            layers.add(Tied(width) if random.random() < 0.5 else Residual(nn.Linear(width, width)))
        if not plain and random.random() < 0.15:
            layers.add(nn.Dropout(0.2))
    layers.add(nn.Linear(layers.shape[0], classes))


def vector_norm(random: Generator, width: int) -> nn.Module:
    kinds = [nn.BatchNorm1d, nn.LayerNorm, lambda width: nn.GroupNorm(1 if width % 2 else width // 2, width)]
    return kinds[random.integers(len(kinds))](width)


def frozen_in_part(random: Generator, model: nn.Sequential) -> nn.Module:
    """The model, perhaps with layers at its beginning that are not trained, or a single parameter."""
    chance, parameters = random.random(), list(model.parameters())
    if any(isinstance(layer, nn.LazyLinear) for layer in model):  # it has no parameters yet
        return model
    if chance < 0.15 and len(model) > 1:
        for layer in model[: random.integers(1, len(model))]:
            layer.requires_grad_(False)
    elif chance < 0.25 and len(parameters) > 1:
        parameters[random.integers(len(parameters))].requires_grad_(False)
    return model
