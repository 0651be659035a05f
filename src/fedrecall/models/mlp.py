"""A multi-layer perceptron for vectors, tables and flattened images."""

from __future__ import annotations

import itertools
import math
from typing import Annotated

from torch import nn

from fedrecall.config.options import Size
from fedrecall.config.titles import titled
from fedrecall.errors import InputError
from fedrecall.models.heads import HeadOption, ScaleOption, with_head


@titled("MLP")
def mlp(
    sample_shape: tuple[int, ...],
    num_classes: int,
    hidden: Annotated[tuple[Size, ...], "widths of the hidden layers; none: a linear model"] = (200, 100),
    head: HeadOption = "linear",
    scale: ScaleOption = 10.0,
) -> nn.Module:
    """Linear layers with ReLU between them. `hidden=[]` is softmax regression."""
    if any(width < 1 for width in hidden):
        raise InputError(f"model.hidden is {list(hidden)}; widths of at least 1 were expected")
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise([math.prod(sample_shape), *hidden]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(hidden[-1] if hidden else math.prod(sample_shape), num_classes))
    return with_head(model, head, scale)
