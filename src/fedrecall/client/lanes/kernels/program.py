"""Generates the kernels of a chain of layers, their memory layout and the order of their calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from fedrecall.client.lanes.kernels import convolution, linear, pooling, rescaling, sample_loading
from fedrecall.client.lanes.kernels.context import KernelContext, Machine
from fedrecall.client.lanes.kernels.ir import ADDRESS, LANES, UNIT, Function, Number
from fedrecall.client.lanes.kernels.layers import (
    Chain,
    Convolution,
    Grid,
    Linear,
    Pooling,
    Spatial,
    after,
)


@dataclass(frozen=True)
class Place:
    """An offset in bytes from an argument of a program; each chunk adds `step`."""

    at: int
    step: int = 0
    base: str = "%pscratch"

    def address(self, f: Function, chunk: Number) -> str:
        return f.at(self.base, self.at, (chunk, self.step), size=1)


@dataclass(frozen=True)
class Call:
    """A call of a kernel."""

    kernel: Function
    places: tuple[Place, ...]
    numbers: tuple[int, ...] = ()

    def write(self, f: Function, chunk: Number = 0) -> None:
        f.call(self.kernel, *[place.address(f, chunk) for place in self.places], *self.numbers)


class Program(ABC):
    """Kernels for batches of `units`, with a client or a sample per lane. With `pixels`, samples are bytes.

    They work in one block of memory of `scratch_bytes`, aligned to 64 bytes and zero at first. Spatial layers are
    called per chunk, linear layers for all units.
    """

    def __init__(self, chain: Chain, units: int, machine: Machine, *, pixels: bool, clients: bool) -> None:
        self.chain, self.units, self.spatial = chain, units, with_pooling_last(chain.spatial)
        self.kit = KernelContext(clients, chunk_of(chain, units), machine)
        self.chunks = units // self.kit.chunk
        self.scratch_bytes = 0
        learning = [j for j, layer in enumerate(self.spatial) if isinstance(layer, Convolution)]
        self.first = learning[0] if learning else len(self.spatial)  # the first layer with weights
        self.images_there: list[Call] = []
        self.images_back: list[Call] = []  # last layer first
        self.features_there: list[Call] = []
        self.features_back: list[Call] = []
        self.sums: dict[int, tuple[Place, int]] = {}  # place and number of the gradient sums, by parameter offset
        self._write_images(pixels=pixels)
        self._write_features()

    @property
    def text(self) -> str:
        """The IR of the program."""
        return self.kit.module.text()

    @abstractmethod
    def weight_calls(self, i: int, c: Linear, x: Place, g: Place) -> list[Call]:
        """Return the calls that compute a linear layer's weight gradients, or that also apply them."""

    # Memory layout

    def room(self, count: int, size: int = UNIT, step: int = 0) -> Place:
        """Reserve memory for `count` elements of `size` bytes."""
        at, self.scratch_bytes = self.scratch_bytes, self.scratch_bytes + -(-count * size // UNIT) * UNIT
        return Place(at, step)

    def _parameter(self, at: int | None) -> Place:
        """Return a parameter's place in the vector; that of a missing bias is never read."""
        return Place((at or 0) * self.kit.weight_size, base="%pw")

    def sums_of(self, at: int | None, count: int) -> Place:
        """Reserve the gradient sums of `count` parameters from offset `at` on."""
        if at is None:
            return Place(0)
        self.sums[at] = self.room(whole_units(count)), count
        return self.sums[at][0]

    def _grid(self, j: int) -> Grid:
        """Return the grid of the input of spatial layer j, or of the features after the last."""
        shape = self.chain.shapes[min(j, len(self.chain.shapes) - 1)]
        if j == len(self.spatial):
            return Grid(*shape, self.units)
        layer = self.spatial[j]
        top, left = layer.padding if isinstance(layer, Convolution) else (0, 0)
        return Grid(*shape, self.kit.chunk, top, left)

    def _gradient_grid(self, j: int) -> Grid:
        """Return the grid of that input's gradient. If a convolution derives its input gradient from it, pixels
        are one stride apart, with room for taps on both sides."""
        grid = self._grid(j)
        layer = self.spatial[j - 1] if j else None
        plain = Grid(grid.channels, grid.height, grid.width, grid.pitch)
        if not isinstance(layer, Convolution) or j - 1 <= self.first:
            return plain
        _, height, width = self.chain.shapes[j - 1]
        rows, columns = after(replace(layer, stride=(1, 1)), height, width)
        more = rows - (grid.height - 1) * layer.stride[0] - 1, columns - (grid.width - 1) * layer.stride[1] - 1
        beside = layer.kernel[1] - 1 - layer.padding[1]
        return replace(plain, left=beside, between=layer.stride, more=more)

    def _after_relu(self, j: int) -> bool:
        """Whether the input of spatial layer j, or the features after the last, come from ReLU."""
        return j > 0 and self.spatial[j - 1].relu

    # Spatial layers

    def _write_images(self, *, pixels: bool) -> None:
        last = len(self.spatial)
        self.grids = [self._grid(j) for j in range(last + 1)]
        self.gradients = [self._gradient_grid(j) for j in range(last + 1)]
        self.at_x = [self._inputs_of(j) for j in range(last)]
        self.at_g = [self.room(grid.size) for grid in self.gradients[:last]]
        for places in (self.at_x, self.at_g):  # features of all chunks
            places.append(self.room(whole_units(self.chain.features) * self.units, step=self.kit.chunk * UNIT))
        self.gather = sample_loading.gather(self.kit, "gather", self.chain.sample, self.grids[0], pixels=pixels)
        for j, layer in enumerate(self.spatial):
            if isinstance(layer, Convolution):
                self._write_convolution(j, layer)
            else:
                self._write_pooling(j, layer)

    def _inputs_of(self, j: int) -> Place:
        """Reserve the input of spatial layer j, for all chunks if the backward pass reads it again."""
        size = self.grids[j].size
        if isinstance(self.spatial[j], Convolution) or self._after_relu(j):
            return self.room(size * self.chunks, step=size * UNIT)
        return self.room(size)

    def _write_convolution(self, j: int, c: Convolution) -> None:
        kit, x, y, g = self.kit, self.grids[j], self.grids[j + 1], self.gradients[j + 1]
        count = c.outputs * c.group[0] * c.taps
        weight, bias = self._parameter(c.weight), self._parameter(c.bias)
        kernel = convolution.forward(kit, f"convolution_{j}", c, x, y)
        self.images_there.append(Call(kernel, (self.at_x[j], weight, bias, self.at_x[j + 1])))
        back = []
        kernel = convolution.weight_gradient(kit, f"convolution_weights_{j}", c, x, g)
        sums = self.sums_of(c.weight, count), self.sums_of(c.bias, c.outputs)
        back.append(Call(kernel, (self.at_x[j], self.at_g[j + 1], *sums)))
        if j > self.first:
            masked = x if self._after_relu(j) else None
            kernel = convolution.input_gradient(kit, f"convolution_input_{j}", c, g, self.gradients[j], masked)
            back.append(Call(kernel, (self.at_g[j + 1], weight, self.at_x[j], self.at_g[j])))
        self.images_back[:0] = back

    def _write_pooling(self, j: int, p: Pooling) -> None:
        kit, x, y, g = self.kit, self.grids[j], self.grids[j + 1], self.gradients[j + 1]
        pixels = y.channels * y.height * y.width * kit.chunk
        seats = self.room(pixels * self.chunks, LANES, step=pixels * LANES)
        kernel = pooling.forward(kit, f"pooling_{j}", p, x, y)
        self.images_there.append(Call(kernel, (self.at_x[j], self.at_x[j + 1], seats)))
        if j > self.first:
            masked = x if self._after_relu(j) else None
            kernel = pooling.backward(kit, f"pooling_input_{j}", p, g, self.gradients[j], masked)
            self.images_back.insert(0, Call(kernel, (self.at_g[j + 1], self.at_x[j], self.at_g[j], seats)))

    # Linear layers

    def _write_features(self) -> None:
        rooms = [whole_units(c.outputs) * self.units for c in self.chain.linear]
        there = [self.at_x[-1], *[self.room(room) for room in rooms]]
        back = [self.at_g[-1], *[self.room(room) for room in rooms]]
        self.at_features, self.at_logits, self.at_logits_gradient = there[0], there[-1], back[-1]
        for i, c in enumerate(self.chain.linear):
            weight, x, g = self._parameter(c.weight), there[i], back[i + 1]
            after_relu = self.chain.linear[i - 1].relu if i else self._after_relu(len(self.spatial))
            learns_before = bool(i) or self.first < len(self.spatial)
            dx, rescaled = back[i], list[Call]()
            if c.length:
                x, dx, rescaled = self._write_rescaling(i, c, x, dx, after_relu=after_relu)
                after_relu = False
            kernel = linear.forward(self.kit, f"linear_{i}", c, self.units)
            self.features_there.append(Call(kernel, (x, weight, self._parameter(c.bias), there[i + 1])))
            calls = self.weight_calls(i, c, x, g)
            if learns_before:  # before the weights change
                kernel = linear.input_gradient(self.kit, f"linear_input_{i}", c, self.units, after_relu=after_relu)
                calls = [Call(kernel, (g, weight, x, dx)), *rescaled, *calls]
            self.features_back[:0] = calls

    def _write_rescaling(
        self, i: int, c: Linear, x: Place, dx: Place, *, after_relu: bool
    ) -> tuple[Place, Place, list[Call]]:
        """Return the places of the scaled features and of their gradient, and the calls from that gradient back."""
        count = whole_units(c.inputs) * self.units
        y, dy, inverses = self.room(count), self.room(count), self.room(self.units)
        kernel = rescaling.forward(self.kit, f"rescaling_{i}", c, self.units)
        self.features_there.append(Call(kernel, (x, y, inverses)))
        kernel = rescaling.backward(self.kit, f"rescaling_input_{i}", c, self.units, after_relu=after_relu)
        return y, dy, [Call(kernel, (dy, x, inverses, dx))]

    # Passes

    def forward_calls(self, f: Function, rows: str) -> None:
        """Emit the calls from the samples at these rows to the logits."""

        def chunk(c: Number) -> None:
            first = self.at_x[0].address(f, c)
            for n in range(self.kit.chunk):
                own = f.at(rows, (c, self.kit.chunk * LANES), n * LANES, size=ADDRESS)
                f.call(self.gather, "%px", "%ppixels", own, f.at(first, n))
            for call in self.images_there:
                call.write(f, c)

        f.loop("%ichunks", chunk)
        for call in self.features_there:
            call.write(f)

    def backward_calls(self, f: Function) -> None:
        """Emit the calls from the logits' gradient to the parameters' gradients, summed in each lane."""
        for call in self.features_back:
            call.write(f)

        def chunk(before: Number) -> None:
            for call in self.images_back:
                call.write(f, f.index("%ichunks", (before, -1), -1))  # last first: still in the cache

        if self.images_back:
            f.loop("%ichunks", chunk)


def chunk_of(chain: Chain, units: int) -> int:
    """Return the units that pass spatial layers together, which depend on model and batch alone. Two fill the
    registers if rows are short; more would not stay in the cache."""
    return 2 if chain.spatial and units % 2 == 0 else 1


def whole_units(count: int) -> int:
    """
    >>> whole_units(17)
    32
    """
    return -(-count // LANES) * LANES


def with_pooling_last(layers: tuple[Spatial, ...]) -> list[Spatial]:
    """Add a 1 x 1 pooling after a last convolution, to bring its images into the order of features."""
    if layers and isinstance(layers[-1], Convolution):
        last = layers[-1]
        return [*layers[:-1], replace(last, relu=False), Pooling(False, (1, 1), (1, 1), last.relu)]
    return list(layers)
