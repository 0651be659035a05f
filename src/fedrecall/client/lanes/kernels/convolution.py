"""Convolutions: forward, and backward by the weights and by the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedrecall.client.lanes.kernels.ir import ZERO, Function, Number, evenly
from fedrecall.client.lanes.kernels.kit import Kit, Positions, row_of
from fedrecall.client.lanes.kernels.layers import Convolution, Grid
from fedrecall.client.lanes.kernels.products import Begin, End, by_stretches, outer, stretch_of

MANY = 60  # positions: blocks of channels are chosen as if a row had so many

# Of the first of some positions, and their number: the first tap of a row that they need, and how many.
Useful = Callable[[Number, int], tuple[Number, Number]]


@dataclass(frozen=True)
class Walk:
    """How many weights it is from an output, a channel, a row of taps and a tap to the next."""

    output: int
    channel: int
    row: int
    tap: int


def every_block(
    kit: Kit, f: Function, groups: int, outputs: int, body: Callable[[Number, Number, int], object]
) -> None:
    """body(group, first output of the group, how many) for blocks of output channels, and for parts of units."""
    most, _ = kit.block(outputs, MANY)

    def group(j: Number) -> None:
        f.blocks(outputs, most, lambda first, count: kit.parts(f, lambda _: body(j, first, count)))

    f.loop(groups, group)


@dataclass(frozen=True)
class Row:
    """A row of a convolution's output, of a block of its channels and a part of the units."""

    kit: Kit
    f: Function
    outputs: int  # channels of the block
    at: Positions
    x: str  # of the first input channel, the pixel under the first tap
    steps: tuple[int, int]  # units from a channel and a row of x to the next
    w: str  # the first tap's weight of the first output and channel
    walk: Walk
    kernel: tuple[int, int]
    rows: Number  # of taps, as they may lie beside x
    useful: Useful

    def store(self, channels: int, out: Callable[..., str], begin: Begin, end: Callable[..., str]) -> None:
        """Places are (output of the block, line, position).

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
        """Of a block of sums: large ones are faster, but at the edges they need more taps."""

        def work(most: int) -> float:
            blocks = evenly(self.at.length, most)
            each = [(first, size) for s, count, size in blocks for first in range(s, s + count * size, size)]
            return sum(int(self.useful(*block)[1]) * self.kit.cost(self.outputs, block[1]) for block in each)

        return min(range(1, self.kit.columns_beside(self.outputs) + 1), key=work)

    def _stretch(self, channels: int) -> int:
        """So many channels that all which a block of sums reads of them stays near. Weights of one client do."""
        height, width = self.kernel
        pixels = height * (self.positions + (width - 1) * self.kit.chunk)
        return stretch_of(channels, height * width * self.outputs + pixels) if self.kit.clients else channels

    def _every(self, visit: Callable[..., None]) -> None:
        def position(n: Number, p: Number) -> None:
            for q in range(self.outputs):
                visit(q, n, p)

        self.f.loop(self.at.lines, lambda n: self.f.loop(self.at.length, lambda p: position(n, p)))

    def _some(self, first: Number, channels: Number, begin: Begin, end: End) -> None:
        """The terms of some channels."""
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
        """The terms of a row of taps."""
        f, walk = self.f, self.walk
        x, w = f.at(x, (row, self.steps[1])), self.kit.weight_at(f, w, (row, walk.row))

        def tap(i: Number, *sums: str) -> list[str]:
            t = f.index(i, first)
            weights, pixel = self.kit.weight_at(f, w, (t, walk.tap)), f.at(x, (t, self.kit.chunk))
            ws = [self.kit.weight(f, weights, q * walk.output) for q in range(self.outputs)]
            return outer(f, sums, ws, [f.load(f.at(pixel, p * self.at.source)) for p in range(size)])

        return f.loop(taps, tap, sums)


def forward(kit: Kit, name: str, c: Convolution, x: Grid, y: Grid) -> Function:
    """y = ReLU(bias + w * x), of a chunk.

    for group, block of outputs, part, row:
        for position, input, tap: y[output][position] += w[output][input][tap] x[input][position + tap]
    """
    f = Function(kit.module, name, "px", "pw", "pb", "py")
    inputs, outputs = c.group
    at = Positions.between(kit.chunk, y.width, c.stride[1] * x.pitch, y.right)
    walk = Walk(inputs * c.taps, 1, c.kernel[1] * inputs, inputs)

    def block(group: Number, first: Number, count: int) -> None:
        o = f.index((group, outputs), first)
        w = kit.weight_at(f, "%pw", (o, walk.output))
        bias = [ZERO if c.bias is None else kit.weight(f, "%pb", o, q) for q in range(count)]

        def row(r: Number) -> None:
            image = under_taps(f, c, x, f.index((group, inputs)), r)
            to = row_of(f, "%py", y, o, r)
            steps, taps = (x.channel, x.row), (0, c.kernel[1])
            Row(kit, f, count, at, image, steps, w, walk, c.kernel, c.kernel[0], lambda p, size: taps).store(
                inputs,
                out=lambda q, n, p: f.at(to, n, (p, at.target), q * y.channel),
                begin=lambda q, n, p: bias[q],
                end=lambda value, q, n, p: f.where_positive(value, value) if c.relu else value,
            )

        f.loop(y.height, row)

    every_block(kit, f, c.groups, outputs, block)
    return f.done()


def under_taps(f: Function, c: Convolution, x: Grid, channel: Number, row: Number) -> str:
    """The pixel of x under the first tap, for the first position of a row of the output."""
    corner = x.start - c.padding[0] * x.row - c.padding[1] * x.pitch
    return f.at("%px", corner, (channel, x.channel), (row, c.stride[0] * x.row))


def input_gradient(kit: Kit, name: str, c: Convolution, g: Grid, dx: Grid, x: Grid | None) -> Function:
    """The gradient of the input: a convolution of g, the gradient of the output, from the last tap to the first.

    `x`, where it is given, is the input and came from ReLU: where it is zero, so is the gradient. Rows of taps
    that lie beside g are left out, and taps that lie beside it for a whole block of positions.

    for group, block of inputs, part, row:
        for position, output, tap: dx[input][position] += w[output][input][tap] g[output][position - tap]
    """
    f = Function(kit.module, name, "pg", "pw", "px", "pdx")
    inputs, outputs = c.group
    kh, kw = c.kernel
    above, beside = kh - 1 - c.padding[0], kw - 1 - c.padding[1]
    height, width = dx.height - kh + 1 + 2 * c.padding[0], dx.width - kw + 1 + 2 * c.padding[1]  # of stride 1
    at = Positions.between(kit.chunk, dx.width, kit.chunk, dx.right)
    useful = meeting(f, kw, beside, width, kit.chunk if at.lines == 1 else 1)
    walk = Walk(1, inputs * c.taps, -kw * inputs, -inputs)

    def row(group: Number, i: Number, count: int, w: str, r: Number) -> None:
        skipped = f.larger(f.index((r, -1), above), 0)
        rows = f.index(f.smaller(kh, f.index((r, -1), height + above)), (skipped, -1))
        source = f.at("%pg", (group, outputs * g.channel), (r, g.row), (skipped, g.row), -above * g.row)
        w = kit.weight_at(f, w, (skipped, walk.row))
        to = row_of(f, "%pdx", dx, i, r)
        on = row_of(f, "%px", x, i, r) if x else ""

        def masked(value: str, q: int, n: Number, p: Number) -> str:
            if x is None:
                return value
            return f.where_positive(f.load(f.at(on, n, (p, at.source), q * x.channel)), value)

        Row(kit, f, count, at, source, (g.channel, g.row), w, walk, c.kernel, rows, useful).store(
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


def meeting(f: Function, taps: int, beside: int, width: int, samples: int) -> Useful:
    """Those of so many taps that meet a row of so many pixels, which begins so far beside the first tap, from one
    of some positions; so many samples of a pixel are next to each other."""

    def useful(first: Number, size: int) -> tuple[Number, Number]:
        left, right = (f.quotient(position, samples) for position in (first, f.index(first, size - 1)))
        start = f.larger(0, f.index(beside, (right, -1)))
        return start, f.index(f.smaller(taps, f.index(beside + width, (left, -1))), (start, -1))

    return useful


def weight_gradient(kit: Kit, name: str, c: Convolution, x: Grid, g: Grid) -> Function:
    """dw and db of a chunk, added to what is there; g is the gradient of the output, before ReLU.

    for row of g, group, block of outputs, input, row of taps, part:
        for line, position, tap: dw[output][input][tap] += g[output][position] x[input][position + tap]
    """
    f = Function(kit.module, name, "px", "pg", "pdw", "pdb")
    inputs, outputs = c.group
    kh, kw = c.kernel
    at = Positions.between(kit.chunk, g.width, c.stride[1] * x.pitch, g.right)

    def bias(o: Number, row: Number) -> None:
        values = row_of(f, "%pg", g, o, row)

        def term(n: Number, p: Number, total: str) -> list[str]:
            return [f.add(total, f.load(f.at(values, n, (p, at.target))))]

        add_terms(f, at, [f.at("%pdb", o)], term)

    def taps(row: Number, group: Number, first: Number, count: int, i: Number, ky: Number) -> None:
        o = f.index((group, outputs), first)
        start = f.at("%pdw", (o, inputs * c.taps), i, (ky, kw * inputs))
        places = [f.at(start, q * inputs * c.taps + t * inputs) for t in range(kw) for q in range(count)]
        image = f.at(under_taps(f, c, x, f.index((group, inputs), i), row), (ky, x.row))
        values = row_of(f, "%pg", g, o, row)

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
    """To the sums there, term(line, position, *sums) of all positions."""

    def line(n: Number, *sums: str) -> list[str]:
        return f.loop(at.length, lambda p, *sums: term(n, p, *sums), sums)

    for value, place in zip(f.loop(at.lines, line, [f.load(place) for place in places]), places):
        f.store(value, place)
