"""ResNet-18 for small images: 3x3 stem, no max-pool; with batch norm, group norm or no norm."""

from __future__ import annotations

import math
from typing import Annotated, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall.config.options import Size
from fedrecall.config.titles import titled
from fedrecall.errors import InputError
from fedrecall.models.heads import HeadOption, ScaleOption, with_head

Norm = Literal["batch", "group", "none"]
Variant = Literal["paper", "authors"]

GROUPS = 2  # in group norm
STRIDES = (1, 2, 2, 2)  # one per stage; the stages have w, 2w, 4w and 8w channels
SMALLEST = 16  # pixels per side: the last stage has an eighth of them


def norm_layer(norm: Norm, channels: int) -> nn.Module:
    """Return the layer that follows a convolution."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return nn.GroupNorm(GROUPS, channels)
    return nn.Identity()


class BasicBlock(nn.Module):
    """relu(branch(x) + shortcut(x)); the branch is conv, norm, relu, conv, norm.

    The shortcut is the identity, or a 1x1 convolution and its norm if the block changes the shape.
    """

    def __init__(self, channels_in: int, channels: int, stride: int, norm: Norm, bias: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, kernel_size=3, stride=stride, padding=1, bias=bias)
        self.norm1 = norm_layer(norm, channels)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=bias)
        self.norm2 = norm_layer(norm, channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            # Pooling to every stride-th pixel, then stride 1, equals a strided 1x1 convolution, whose gradient in
            # oneDNN writes out of bounds on few channels (oneDNN #6035).
            self.shortcut = nn.Sequential(
                nn.AvgPool2d(kernel_size=1, stride=stride),
                nn.Conv2d(channels_in, channels, kernel_size=1, bias=bias),
                norm_layer(norm, channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        branch = F.relu(self.norm1(self.conv1(x)))
        branch = self.norm2(self.conv2(branch))
        return F.relu(branch + self.shortcut(x))


class ResNet18(nn.Module):
    """He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, arXiv 1512.03385.

    As Legate et al. (arXiv 2304.05260) use it on small images: a 3x3 stem of stride 1 and no max-pool before the
    four stages of two blocks, then pooling and a linear head. Layers have PyTorch's initial values or, without a
    norm, those of `initialise_without_norm`.
    """

    def __init__(
        self, sample_shape: tuple[int, ...], num_classes: int, norm: Norm, width: int, variant: Variant
    ) -> None:
        super().__init__()
        channels, *sides = sample_shape
        bias = norm == "none" or variant == "authors"  # a norm has a bias of its own
        self.stem = nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=bias)
        self.norm = norm_layer(norm, width)
        self.blocks = nn.Sequential()
        before = width
        for stage, stride in enumerate(STRIDES):
            after = width * 2**stage
            self.blocks.append(BasicBlock(before, after, stride, norm, bias))
            self.blocks.append(BasicBlock(after, after, 1, norm, bias))
            before = after
        self.pool = nn.AvgPool2d(3, stride=2) if variant == "authors" else nn.AdaptiveAvgPool2d(1)
        places = math.prod(map(pooled_side, sides)) if variant == "authors" else 1
        self.head = nn.Linear(before * places, num_classes)
        if norm == "none":
            self.initialise_without_norm()

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = self.blocks(x)
        logits: Tensor = self.head(self.pool(x).flatten(1))
        return logits

    @torch.no_grad()
    def initialise_without_norm(self) -> None:
        """Initialise the convolutions as Fixup does (Zhang, Dauphin and Ma, ICLR 2019, arXiv 1901.09321), without
        its multipliers and its zero head.

        Weights are normal with variance 2 / fan-in, biases zero; in the L = 8 branches the second convolution is
        zero and the first is scaled by L^(-1/2). PyTorch's defaults leave next to no signal without a norm: the
        model did not train in a trial.
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)
        for block in self.blocks:
            assert isinstance(block, BasicBlock)
            block.conv1.weight.mul_(len(self.blocks) ** -0.5)
            nn.init.zeros_(block.conv2.weight)


def pooled_side(pixels: int) -> int:
    """Return the side of the output of AvgPool(3, 2) for an image with `pixels` per side; 0 if it does not fit.

    32 and 28 pixels give 1: the last stage has 4 rows and columns, of which the fourth are in no window.

    >>> [pooled_side(pixels) for pixels in (16, 24, 28, 32, 40, 64)]
    [0, 1, 1, 1, 2, 3]
    """
    last_stage = math.ceil(pixels / math.prod(STRIDES))  # a 3x3 convolution of stride 2 and padding 1 rounds up
    return (last_stage - 3) // 2 + 1


@titled("ResNet-18")
def resnet18(
    sample_shape: tuple[int, ...],
    num_classes: int,
    norm: Annotated[Norm, "batch | group (2 groups) | none (convolutions have biases)"] = "batch",
    width: Annotated[Size, "channels of the first stage; the others have 2, 4 and 8 times as many"] = 64,
    variant: Annotated[Variant, "paper | authors: conv biases, AvgPool(3, 2) for global pooling"] = "paper",
    head: HeadOption = "linear",
    scale: ScaleOption = 10.0,
) -> nn.Module:
    """ResNet-18 for images of at least 16x16 pixels and any number of channels."""
    for key, given, known in (("norm", norm, get_args(Norm)), ("variant", variant, get_args(Variant))):
        if given not in known:
            raise InputError(f"model.{key} is {given!r}; one of {', '.join(known)} was expected")
    if len(sample_shape) != 3 or min(sample_shape[1:]) < SMALLEST:
        raise InputError(
            f"model resnet18 takes images of {SMALLEST}x{SMALLEST} and more, "
            f"but a sample of this data is {sample_shape}"
        )
    if variant == "authors" and not all(map(pooled_side, sample_shape[1:])):
        raise InputError(
            "model resnet18 with variant authors takes images of 17x17 and more, because AvgPool(3, 2) does not "
            f"fit the last stage of smaller ones, but a sample of this data is {sample_shape}"
        )
    if width < 1:
        raise InputError(f"model.width is {width}; a width of at least 1 was expected")
    if norm == "group" and width % GROUPS:
        raise InputError(f"model.width is {width}; norm group needs a width that its {GROUPS} groups divide")
    return with_head(ResNet18(sample_shape, num_classes, norm, width, variant), head, scale)
