"""The layers that have kernels, and the memory layout of the images between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """Images of a chunk of samples: [channel][row][column][sample of the chunk], counted in units.

    An image may have a border of zeros, and zeros between its pixels, which are never written to.
    """

    channels: int
    height: int
    width: int
    pitch: int  # units from one pixel to the next
    top: int = 0  # rows of the border, above and below
    left: int = 0  # columns of the border, on both sides
    between: tuple[int, int] = (1, 1)  # rows and columns from one pixel to the next
    more: tuple[int, int] = (0, 0)  # rows and columns after the last pixel

    @property
    def row(self) -> int:
        """Units from one row of memory to the next."""
        return ((self.width - 1) * self.between[1] + 1 + self.more[1] + 2 * self.left) * self.pitch

    @property
    def channel(self) -> int:
        return ((self.height - 1) * self.between[0] + 1 + self.more[0] + 2 * self.top) * self.row

    @property
    def size(self) -> int:
        return self.channels * self.channel

    @property
    def start(self) -> int:
        """Offset of the first pixel."""
        return self.top * self.row + self.left * self.pitch

    @property
    def down(self) -> int:
        """Units from one row of pixels to the next."""
        return self.between[0] * self.row

    @property
    def right(self) -> int:
        return self.between[1] * self.pitch


Pair = tuple[int, int]


@dataclass(frozen=True)
class Convolution:
    """Weights are [output][row][column][input] (channels last) from offset `weight` of the model's vector."""

    inputs: int  # channels
    outputs: int
    kernel: Pair
    stride: Pair
    padding: Pair
    groups: int
    weight: int
    bias: int | None
    relu: bool = False

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def group(self) -> Pair:
        """Input and output channels of a group."""
        return self.inputs // self.groups, self.outputs // self.groups


@dataclass(frozen=True)
class Pooling:
    """Max-pooling if `largest`, else mean-pooling."""

    largest: bool
    kernel: Pair
    stride: Pair
    relu: bool = False


@dataclass(frozen=True)
class Linear:
    """Weights are [output][input]. With `length`, inputs are first scaled to it: x length / sqrt(x^2 + epsilon)."""

    inputs: int
    outputs: int
    weight: int
    bias: int | None
    relu: bool = False
    length: float = 0.0
    epsilon: float = 0.0


Spatial = Convolution | Pooling
Layer = Spatial | Linear


def after(layer: Spatial, height: int, width: int) -> Pair:
    """Return the rows and columns of a layer's output."""
    (kh, kw), (sh, sw) = layer.kernel, layer.stride
    ph, pw = layer.padding if isinstance(layer, Convolution) else (0, 0)
    return (height + 2 * ph - kh) // sh + 1, (width + 2 * pw - kw) // sw + 1


@dataclass(frozen=True)
class Pixels:
    """Normalisation of samples stored as bytes, channels last: shift + scale * byte, by channel."""

    scale: tuple[float, ...]
    shift: tuple[float, ...]


@dataclass(frozen=True)
class Chain:
    """A model as a sequence of layers: spatial layers on images, then linear layers on features."""

    sample: tuple[int, ...]  # the shape of an input: (features,) or (channels, height, width)
    spatial: tuple[Spatial, ...]
    linear: tuple[Linear, ...]
    parameters: int  # the length of the model's vector

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Channels, rows and columns of the input and of each spatial layer's output."""
        channels, height, width = self.sample if len(self.sample) == 3 else (self.sample[0], 1, 1)
        found = [(channels, height, width)]
        for layer in self.spatial:
            height, width = after(layer, height, width)
            channels = layer.outputs if isinstance(layer, Convolution) else channels
            found.append((channels, height, width))
        return found

    @property
    def features(self) -> int:
        """Inputs of the first linear layer, or outputs of the chain if there is none."""
        channels, height, width = self.shapes[-1]
        return channels * height * width

    @property
    def outputs(self) -> int:
        return self.linear[-1].outputs if self.linear else self.features
