"""Kernels of convolutions: forward, input gradient and weight gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedrecall.client.lanes.kernels.context import KernelContext, Positions, row_address
from fedrecall.client.lanes.kernels.ir import ZERO, Function, Number, even_blocks
from fedrecall.client.lanes.kernels.layers import Convolution, Grid
from fedrecall.client.lanes.kernels.products import Begin, End, by_stretches, outer, stretch_of

MANY = 60  # positions per row that the choice of channel blocks assumes

# Maps the first of some positions and their number to the first tap that they need and the number of taps.
Useful = Callable[[Number, int], tuple[Number, Number]]


@dataclass(frozen=True)
class WeightStrides:
    """Strides of the weights between outputs, channels, rows of taps, and taps."""

    output: int
    channel: int
    row: int
    tap: int


def every_block(
    kit: KernelContext, f: Function, groups: int, outputs: int, body: Callable[[Number, Number, int], object]
) -> None:
    """Emit body(group, first, count) for blocks of each group's output channels, and for parts of units."""
    most, _ = kit.block(outputs, MANY)

    def group(j: Number) -> None:
        f.blocks(outputs, most, lambda first, count: kit.parts(f, lambda _: body(j, first, count)))

    f.loop(groups, group)


@dataclass(frozen=True)
class OutputRow:
    """A row of a convolution's output, for a block of channels and a part of the units."""

    kit: KernelContext
    f: Function
    outputs: int  # channels of the block
    at: Positions
    x: str  # address of the pixel under the first tap, in the first input channel
    steps: tuple[int, int]  # units between channels and between rows of x
    w: str  # address of the first tap's weight, of the first output and channel
    walk: WeightStrides
    kernel: tuple[int, int]
    rows: Number  # number of rows of taps; rows outside x are left out
    useful: Useful

    def store(self, channels: int, out: Callable[..., str], begin: Begin, end: Callable[..., str]) -> None:
        """Store the row. Sums have indices (output of the block, line, position).

        for stretch of input channels:
            for line, block of positions:
                for channel, row of taps, tap:
                    sums[output][position] += w[output][channel][tap] x[channel][position + tap]
        """
        by_stretches(
            self.f, channels, self._stretch(channels), every=self._every, terms=self._some,
            out=out, begin=begin, end=end,
        )  # fmt: skip

    @property
    def positions(self) -> int:
        """Positions of a block of sums: large blocks are faster, but need more taps at the edges."""

        def work(most: int) -> float:
            blocks = even_blocks(self.at.length, most)
            each = [(first, size) for s, count, size in blocks for first in range(s, s + count * size, size)]
            return sum(int(self.useful(*block)[1]) * self.kit.cost(self.outputs, block[1]) for block in each)

        return min(range(1, self.kit.columns_beside(self.outputs) + 1), key=work)

    def _stretch(self, channels: int) -> int:
        """Return the number of channels whose operands fit in the cache; with one client's weights, all do."""
        height, width = self.kernel
        pixels = height * (self.positions + (width - 1) * self.kit.chunk)
        return stretch_of(channels, height * width * self.outputs + pixels) if self.kit.clients else channels

    def _every(self, visit: Callable[..., None]) -> None:
        def position(n: Number, p: Number) -> None:
            for q in range(self.outputs):
                visit(q, n, p)

        self.f.loop(self.at.lines, lambda n: self.f.loop(self.at.length, lambda p: position(n, p)))

    def _some(self, first: Number, channels: Number, begin: Begin, end: End) -> None:
        """Add the terms of some channels."""
        f, own, other = self.f, self.steps[0], self.walk.channel
        x, w = f.at(self.x, (first, own)), self.kit.weight_at(f, self.w, (first, other))

        def block(n: Number, p: Number, size: int) -> None:
            places = [(q, n, f.index(p, s)) for q in range(self.outputs) for s in range(size)]
            image, taps = f.at(x, n, (p, self.at.source)), self.useful(p, size)

            def channel(i: Number, *sums: str) -> list[str]:
                pixels, weights = f.at(image, (i, own)), self.kit.weight_at(f, w, (i, other))
                return f.loop(self.rows, lambda r, *sums: self._taps(pixels, weights, r, size, *taps, sums), sums)

            for value, place in zip(f.loop(channels, channel, [begin(*place) for place in places]), places):
                end(value, *place)

        def line(n: Number) -> None:
            f.blocks(self.at.length, self.positions, lambda p, size: block(n, p, size))

        f.loop(self.at.lines, line)

    def _taps(
        self, x: str, w: str, row: Number, size: int, first: Number, taps: Number, sums: Sequence[str]
    ) -> list[str]:
        """Return the sums after adding the terms of a row of taps."""
        f, walk = self.f, self.walk
        x, w = f.at(x, (row, self.steps[1])), self.kit.weight_at(f, w, (row, walk.row))

        def tap(i: Number, *sums: str) -> list[str]:
            t = f.index(i, first)
            weights, pixel = self.kit.weight_at(f, w, (t, walk.tap)), f.at(x, (t, self.kit.chunk))
            ws = [self.kit.weight(f, weights, q * walk.output) for q in range(self.outputs)]
            return outer(f, sums, ws, [f.load(f.at(pixel, p * self.at.source)) for p in range(size)])

        return f.loop(taps, tap, sums)


def forward(kit: KernelContext, name: str, c: Convolution, x: Grid, y: Grid) -> Function:
    """Return the kernel of y = ReLU(bias + w * x) for a chunk.

    for group, block of outputs, part, row:
        for position, input, tap: y[output][position] += w[output][input][tap] x[input][position + tap]
    """
    f = Function(kit.module, name, "px", "pw", "pb", "py")
    inputs, outputs = c.group
    at = Positions.between(kit.chunk, y.width, c.stride[1] * x.pitch, y.right)
    walk = WeightStrides(inputs * c.taps, 1, c.kernel[1] * inputs, inputs)

    def block(group: Number, first: Number, count: int) -> None:
        o = f.index((group, outputs), first)
        w = kit.weight_at(f, "%pw", (o, walk.output))
        bias = [ZERO if c.bias is None else kit.weight(f, "%pb", o, q) for q in range(count)]

        def row(r: Number) -> None:
            image = first_tap_address(f, c, x, f.index((group, inputs)), r)
            to = row_address(f, "%py", y, o, r)
            steps, taps = (x.channel, x.row), (0, c.kernel[1])
            OutputRow(kit, f, count, at, image, steps, w, walk, c.kernel, c.kernel[0], lambda p, size: taps).store(
                inputs,
                out=lambda q, n, p: f.at(to, n, (p, at.target), q * y.channel),
                begin=lambda q, n, p: bias[q],
                end=lambda value, q, n, p: f.where_positive(value, value) if c.relu else value,
            )

        f.loop(y.height, row)

    every_block(kit, f, c.groups, outputs, block)
    return f.done()


def first_tap_address(f: Function, c: Convolution, x: Grid, channel: Number, row: Number) -> str:
    """Return the address in x under the first tap, for the first position of an output row."""
    corner = x.start - c.padding[0] * x.row - c.padding[1] * x.pitch
    return f.at("%px", corner, (channel, x.channel), (row, c.stride[0] * x.row))


def input_gradient(kit: KernelContext, name: str, c: Convolution, g: Grid, dx: Grid, x: Grid | None) -> Function:
    """Return the kernel of the input gradient: g, the output gradient, convolved from the last tap to the first.

    `x`, if given, is the input, an output of ReLU: the gradient is zero where x is. Rows of taps outside g are
    skipped, and so are taps outside g for a whole block of positions.

    for group, block of inputs, part, row:
        for position, output, tap: dx[input][position] += w[output][input][tap] g[output][position - tap]
    """
    f = Function(kit.module, name, "pg", "pw", "px", "pdx")
    inputs, outputs = c.group
    kh, kw = c.kernel
    above, beside = kh - 1 - c.padding[0], kw - 1 - c.padding[1]
    height, width = dx.height - kh + 1 + 2 * c.padding[0], dx.width - kw + 1 + 2 * c.padding[1]  # of stride 1
    at = Positions.between(kit.chunk, dx.width, kit.chunk, dx.right)
    useful = overlapping_taps(f, kw, beside, width, kit.chunk if at.lines == 1 else 1)
    walk = WeightStrides(1, inputs * c.taps, -kw * inputs, -inputs)

    def row(group: Number, i: Number, count: int, w: str, r: Number) -> None:
        skipped = f.larger(f.index((r, -1), above), 0)
        rows = f.index(f.smaller(kh, f.index((r, -1), height + above)), (skipped, -1))
        source = f.at("%pg", (group, outputs * g.channel), (r, g.row), (skipped, g.row), -above * g.row)
        w = kit.weight_at(f, w, (skipped, walk.row))
        to = row_address(f, "%pdx", dx, i, r)
        on = row_address(f, "%px", x, i, r) if x else ""

        def masked(value: str, q: int, n: Number, p: Number) -> str:
            if x is None:
                return value
            return f.where_positive(f.load(f.at(on, n, (p, at.source), q * x.channel)), value)

        OutputRow(kit, f, count, at, source, (g.channel, g.row), w, walk, c.kernel, rows, useful).store(
            outputs,
            out=lambda q, n, p: f.at(to, n, (p, at.target), q * dx.channel),
            begin=lambda q, n, p: ZERO,
            end=masked,
        )

    def block(group: Number, first: Number, count: int) -> None:
        i = f.index((group, inputs), first)
        w = kit.weight_at(f, "%pw", (group, outputs * inputs * c.taps), first, (c.taps - 1) * inputs)
        f.loop(dx.height, lambda r: row(group, i, count, w, r))

    every_block(kit, f, c.groups, inputs, block)
    return f.done()


def overlapping_taps(f: Function, taps: int, beside: int, width: int, samples: int) -> Useful:
    """Return the function that selects the taps that overlap a row of `width` pixels. At position 0 the row starts
    `beside` taps after the first one; `samples` positions share a pixel."""

    def useful(first: Number, size: int) -> tuple[Number, Number]:
        left, right = (f.quotient(position, samples) for position in (first, f.index(first, size - 1)))
        start = f.larger(0, f.index(beside, (right, -1)))
        return start, f.index(f.smaller(taps, f.index(beside + width, (left, -1))), (start, -1))

    return useful


def weight_gradient(kit: KernelContext, name: str, c: Convolution, x: Grid, g: Grid) -> Function:
    """Return the kernel that adds dw and db of a chunk; g is the gradient of the output before ReLU.

    for row of g, group, block of outputs, input, row of taps, part:
        for line, position, tap: dw[output][input][tap] += g[output][position] x[input][position + tap]
    """
    f = Function(kit.module, name, "px", "pg", "pdw", "pdb")
    inputs, outputs = c.group
    kh, kw = c.kernel
    at = Positions.between(kit.chunk, g.width, c.stride[1] * x.pitch, g.right)

    def bias(o: Number, row: Number) -> None:
        values = row_address(f, "%pg", g, o, row)

        def term(n: Number, p: Number, total: str) -> list[str]:
            return [f.add(total, f.load(f.at(values, n, (p, at.target))))]

        add_terms(f, at, [f.at("%pdb", o)], term)

    def taps(row: Number, group: Number, first: Number, count: int, i: Number, ky: Number) -> None:
        o = f.index((group, outputs), first)
        start = f.at("%pdw", (o, inputs * c.taps), i, (ky, kw * inputs))
        places = [f.at(start, q * inputs * c.taps + t * inputs) for t in range(kw) for q in range(count)]
        image = f.at(first_tap_address(f, c, x, f.index((group, inputs), i), row), (ky, x.row))
        values = row_address(f, "%pg", g, o, row)

        def term(n: Number, p: Number, *sums: str) -> list[str]:
            gs = [f.load(f.at(values, n, (p, at.target), q * g.channel)) for q in range(count)]
            return outer(f, sums, [f.load(f.at(image, n, (p, at.source), t * x.pitch)) for t in range(kw)], gs)

        kit.parts(f, lambda _: add_terms(f, at, places, term))

    def block(row: Number, group: Number, first: Number, count: int) -> None:
        f.loop(inputs, lambda i: f.loop(kh, lambda ky: taps(row, group, first, count, i, ky)))

    def whole_row(row: Number) -> None:
        if c.bias is not None:
            f.loop(c.outputs, lambda o: bias(o, row))
        most = kit.rows_beside(kw)
        f.loop(c.groups, lambda j: f.blocks(outputs, most, lambda first, count: block(row, j, first, count)))

    f.loop(g.height, whole_row)
    return f.done()


def add_terms(f: Function, at: Positions, places: list[str], term: Callable[..., list[str]]) -> None:
    """Update the sums at `places` by term(line, position, *sums) for all positions."""

    def line(n: Number, *sums: str) -> list[str]:
        return f.loop(at.length, lambda p, *sums: term(n, p, *sums), sums)

    for value, place in zip(f.loop(at.lines, line, [f.load(place) for place in places]), places):
        f.store(value, place)
