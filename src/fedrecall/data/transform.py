"""Transforms of stored samples to a model's input, a batch at a time: casting, normalisation, augmentation.

A batch stays on its device; random numbers are drawn on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedrecall.errors import InputError

Generators = torch.Generator | list[torch.Generator] | None


@dataclass(frozen=True)
class Plain:
    """For features and token ids: floats become float32, integers and booleans int64."""

    is_random: ClassVar[bool] = False

    def __call__(self, batch: Tensor, generator: Generators = None) -> Tensor:
        return batch.to(torch.float32 if batch.is_floating_point() else torch.int64)


@dataclass(frozen=True)
class Images:
    """For uint8 images (B, H, W, C): float32 (B, C, H, W) in channels_last memory, (x / 255 - mean) / std.

    With a generator (training), each image is first cropped to its size at a random place after padding with
    `crop_padding` black pixels on each side, then mirrored with probability 1/2 if `flip`.

    >>> grey = Images(mean=(0.5,), std=(0.25,))
    >>> grey(torch.tensor([[[[0], [255]]]], dtype=torch.uint8)).round(decimals=4)
    tensor([[[[-2.,  2.]]]])
    """

    mean: tuple[float, ...]  # per channel, on the 0..1 scale
    std: tuple[float, ...]
    crop_padding: int = 0
    flip: bool = False
    smaller: ClassVar[int] = 0  # how many pixels a crop is smaller than the image per side

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise InputError(f"mean {self.mean} and std {self.std} must have one number a channel each.")
        if not all(s > 0 for s in self.std):
            raise InputError(f"std is {self.std}, but every channel's must be positive.")
        if self.crop_padding < 0:
            raise InputError(f"crop_padding is {self.crop_padding}, but it must not be negative.")

    def __call__(self, batch: Tensor, generator: Generators = None) -> Tensor:
        return self._normalise(self.augmented(batch, generator))

    def augmented(self, batch: Tensor, generator: Generators = None) -> Tensor:
        """Return the images as bytes, randomly cropped and mirrored if generators are given."""
        if batch.dtype != torch.uint8 or batch.ndim != 4 or batch.shape[3] != len(self.mean):
            raise InputError(
                f"the image batch is {batch.dtype} of shape {tuple(batch.shape)}, "
                f"expected torch.uint8 of shape (B, H, W, {len(self.mean)})."
            )
        if generator is not None and self.is_random:
            # Each of several generators draws for its equal part of the batch.
            each = generator if isinstance(generator, list) else [generator]
            draws = [self.draw(len(batch) // len(each), one) for one in each]
            top, left, mirrored = (torch.cat(parts) for parts in zip(*draws))
            if self.crop_padding:
                batch = _crop(batch, self.crop_padding, self.smaller, top, left)
            if self.flip:
                batch = _mirror(batch, mirrored)
        return batch

    @property
    def is_random(self) -> bool:
        """Whether training augments images at random."""
        return self.crop_padding > 0 or self.flip

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Draw each crop's top and left edge in the padded image, and 1 where the crop is mirrored.

        Three numbers per image are drawn whatever the settings, so that crops do not depend on `flip`.
        """
        places = 2 * self.crop_padding + self.smaller + 1
        top, left = torch.randint(0, places, (2, count), generator=generator)
        mirrored = torch.randint(0, 2, (count,), generator=generator)
        return top, left, mirrored

    @property
    def scale_and_shift(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The factor of a byte and the summand of each channel."""
        return tuple(1 / (255 * s) for s in self.std), tuple(-m / s for m, s in zip(self.mean, self.std))

    def _normalise(self, batch: Tensor) -> Tensor:
        scale, shift = _of_pixels(*self.scale_and_shift, batch.shape[1] * batch.shape[2], batch.device)
        rows = batch.flatten(1).float()
        torch.addcmul(shift, rows, scale, out=rows)
        return rows.view(batch.shape).permute(0, 3, 1, 2)


Transform = Images | Plain


@dataclass(frozen=True)
class SmallerCrops(Images):
    """Like `Images`, with training crops that are four pixels smaller per side; evaluation sees whole images."""

    smaller: ClassVar[int] = 4


@lru_cache(maxsize=8)
def _of_pixels(
    scale: tuple[float, ...], shift: tuple[float, ...], pixels: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Repeat factors and summands for each pixel of a flat image: broadcasting C numbers is four times slower."""
    factors, added = (torch.tensor(numbers, dtype=torch.float64).float() for numbers in (scale, shift))
    return factors.repeat(pixels).to(device), added.repeat(pixels).to(device)


def _crop(images: Tensor, padding: int, smaller: int, top: Tensor, left: Tensor) -> Tensor:
    count, height, width, channels = images.shape
    padded = F.pad(images.flatten(2), (padding * channels, padding * channels, padding, padding))
    padded_height, padded_width = height + 2 * padding, width + 2 * padding
    height, width = height - smaller, width - smaller
    # A view of all runs of `width` pixels: a crop is `height` of them, each copied as one piece.
    runs = padded.flatten().unfold(0, width * channels, channels)
    first = (torch.arange(count) * padded_height + top) * padded_width + left
    rows = first[:, None] + torch.arange(height) * padded_width
    return runs.index_select(0, rows.flatten().to(images.device)).view(count, height, width, channels)


def _mirror(images: Tensor, mirrored: Tensor) -> Tensor:
    # Mirroring all and picking whole images is faster than mirroring the chosen ones in place.
    count = len(images)
    chosen = torch.arange(count) + count * mirrored
    return torch.cat([images, images.flip(2)]).index_select(0, chosen.to(images.device))


def image_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of uint8 images (N, H, W, C), on the 0..1 scale.

    Pixels are counted by value, a few images at a time, which is exact and works for memory maps of any size.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.size == 0:
        raise InputError(f"the images are {images.dtype} of shape {images.shape}, expected uint8 (N, H, W, C).")
    channels = images.shape[3]
    counts = np.zeros((channels, 256), dtype=np.int64)
    step = max(1, 2**20 // images[0].size)
    for start in range(0, len(images), step):
        pixels = images[start : start + step].reshape(-1, channels)
        for c in range(channels):
            counts[c] += np.bincount(pixels[:, c], minlength=256)
    values = np.arange(256) / 255
    shares = counts / counts.sum(axis=1, keepdims=True)
    mean = shares @ values
    variance = (shares * (values - mean[:, None]) ** 2).sum(axis=1)
    return tuple(mean.tolist()), tuple(np.sqrt(variance).tolist())


def normalised(x: np.ndarray) -> Images:
    """Return the transform that normalises images by their own statistics; a constant channel is only shifted."""
    mean, std = image_statistics(x)
    return Images(mean, tuple(s if s > 0 else 1.0 for s in std))


def channels_last(x: np.ndarray, layout: str) -> np.ndarray:
    """Return images as (N, H, W, C), which is how they are stored."""
    if x.ndim == 3:
        return x[..., None]
    if layout == "auto":
        first, last = x.shape[1] in (1, 3, 4), x.shape[3] in (1, 3, 4)
        if first == last:
            raise InputError(f"images of shape {x.shape} may be channels first or last; say layout='nchw' or 'nhwc'")
        layout = "nchw" if first else "nhwc"
    if layout not in ("nchw", "nhwc"):
        raise InputError(f"layout is {layout!r}; 'auto', 'nchw' or 'nhwc' was expected")
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if layout == "nchw" else x
