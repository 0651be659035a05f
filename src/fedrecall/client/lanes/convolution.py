"""Convolutions: forward, and backward by the weights and by the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedrecall.client.lanes.ir import FLOAT, LANES, UNIT, ZERO, Function, Number, evenly
from fedrecall.client.lanes.kit import Kit, Positions, row_of
from fedrecall.client.lanes.layers import Convolution, Grid
from fedrecall.client.lanes.products import NEAR, Begin, End, by_stretches, outer

MANY = 60  # positions of a row, or about as many: blocks of channels are chosen for so many


def pack(kit: Kit, name: str, c: Convolution, *, back: bool) -> Function:
    """Weights [output][tap][input] in the order in which a kernel reads them: [block][part][input][tap][output].

    `back`: for the gradient of the input, which is a convolution with outputs and inputs exchanged and the taps
    turned round.

    for group, block of outputs, part, input, tap, output of the block
    """
    f = Function(kit.module, name, "pw", "pto")
    inputs, outputs = c.group
    own, other = (1, inputs * c.taps) if back else (inputs * c.taps, 1)  # from an output, an input to the next
    if back:
        inputs, outputs = outputs, inputs

    def block(o: Number, source: str, count: int, part: Number) -> None:
        target = kit.packed_block(f, "%pto", o, inputs * c.taps, count, part)

        def tap(i: Number, t: Number) -> None:
            turned = f.index((t, -1), c.taps - 1) if back else t
            for q in range(count):
                at = kit.weight_at(f, source, (i, other), (turned, c.group[0]), q * own)
                to = kit.packed_at(f, target, (i, c.taps * count), (t, count), q)
                if kit.clients:
                    f.store_here(f.load(at), to)
                else:
                    f.copy_float(at, to)

        f.loop(inputs, lambda i: f.loop(c.taps, lambda t: tap(i, t)))

    def parts(group: Number, first: Number, count: int) -> None:
        source = kit.weight_at(f, "%pw", (group, inputs * outputs * c.taps), (first, own))
        o = f.index((group, outputs), first)
        f.parts(kit.machine.lanes if kit.clients else LANES, lambda part: block(o, source, count, part))

    most, _ = kit.block(outputs, MANY)
    f.loop(c.groups, lambda g: f.blocks(outputs, most, lambda first, count: parts(g, first, count)))
    return f.done()


@dataclass(frozen=True)
class Row:
    """A row of a convolution's output, of a block of its channels, and a part of the units."""

    kit: Kit
    f: Function
    block: tuple[int, int]  # channels, positions
    at: Positions
    x: str  # of the first input channel, the pixel under the first tap
    steps: tuple[int, int, int]  # units from a channel, a row and a position of x to the next
    w: str  # the block's packed weights
    kernel: tuple[int, int]
    rows: Number  # of taps
    useful: Callable[[int, int], range]  # the taps of so many positions, from one on

    def store(self, channels: int, out: Callable[..., str], begin: Begin, end: Callable[..., str]) -> None:
        """
        for stretch of input channels:
            for line, block of positions:
                for channel, row of taps, tap:
                    sums[output][position] += w[output][channel][tap] x[channel][position + tap]
        """
        stretch = max(1, NEAR * UNIT // self._bytes()) if self.kit.by_stretches else channels
        by_stretches(self.f, channels, stretch, every=self._every, terms=self._some, out=out, begin=begin, end=end)

    def _bytes(self) -> int:
        """What a block of sums reads of a channel."""
        (outputs, positions), (height, width) = self.block, self.kernel
        weight = self.kit.machine.lanes * FLOAT if self.kit.clients else FLOAT
        return height * (width * outputs * weight + (positions + (width - 1) * self.kit.chunk) * UNIT)

    def _every(self, visit: Callable[..., None]) -> None:
        f = self.f
        for q in range(self.block[0]):
            f.loop(self.at.lines, lambda n: f.loop(self.at.length, lambda p: visit(q, n, p)))

    def _some(self, first: Number, channels: Number, begin: Begin, end: End) -> None:
        """Some of the channels."""
        f, outputs = self.f, self.block[0]
        x, w = (
            f.at(self.x, (first, self.steps[0])),
            self._weights(self.w, (first, self.kernel[0] * self.kernel[1])),
        )

        def positions(n: Number, p: Number, size: int, taps: range) -> None:
            image = f.at(x, n, (p, self.at.source))
            places = [(q, n, f.index(p, s)) for q in range(outputs) for s in range(size)]

            def channel(i: Number, *sums: str) -> list[str]:
                own, weights = (
                    f.at(image, (i, self.steps[0])),
                    self._weights(w, (i, self.kernel[0] * self.kernel[1])),
                )
                return f.loop(self.rows, lambda r, *sums: self._taps(own, weights, r, size, taps, sums), sums)

            sums = f.loop(channels, channel, [begin(*place) for place in places])
            for value, place in zip(sums, places):
                end(value, *place)

        def run(n: Number, start: int, times: int, size: int) -> None:
            taps = self.useful(start, size)
            f.loop(times, lambda i: positions(n, f.index((i, size), start), size, taps))

        def line(n: Number) -> None:
            for start, times, size in alike(self.at.length, self.block[1], self.useful):
                run(n, start, times, size)

        f.loop(self.at.lines, line)

    def _taps(self, x: str, w: str, row: Number, size: int, taps: range, sums: Sequence[str]) -> list[str]:
        """A row of them."""
        f, outputs = self.f, self.block[0]
        x, w = f.at(x, (row, self.steps[1])), self._weights(w, (row, self.kernel[1]))

        def tap(i: Number, *sums: str) -> list[str]:
            t = f.index(i, taps.start)
            image, weights = f.at(x, (t, self.kit.chunk)), self._weights(w, (t, 1))
            ws = [self.kit.packed(f, weights, q) for q in range(outputs)]
            return outer(f, sums, ws, [f.load(f.at(image, p * self.steps[2])) for p in range(size)])

        return f.loop(len(taps), tap, sums)

    def _weights(self, w: str, taps: tuple[Number, int]) -> str:
        """So many taps further."""
        return self.kit.packed_at(self.f, w, (taps[0], taps[1] * self.block[0]))


def alike(length: int, most: int, useful: Callable[[int, int], range]) -> list[tuple[int, int, int]]:
    """Blocks of positions, those next to each other of one size and with the same taps as one entry: where they
    begin, how many, and their size."""
    found: list[tuple[int, int, int]] = []
    for start, count, size in evenly(length, most):
        for i in range(count):
            first = start + i * size
            if found and found[-1][2] == size and useful(found[-1][0], size) == useful(first, size):
                found[-1] = (found[-1][0], found[-1][1] + 1, size)
            else:
                found.append((first, 1, size))
    return found


def forward(kit: Kit, name: str, c: Convolution, x: Grid, y: Grid) -> Function:
    """y = ReLU(bias + w * x), of a chunk; `w` is packed.

    for group, block of outputs, part, row:
        for position, input, tap: y[output][position] += w[output][input][tap] x[input][position + tap]
    """
    f = Function(kit.module, name, "px", "pw", "pb", "py")
    inputs, outputs = c.group
    most_outputs, most_positions = kit.block(outputs, MANY)
    at = Positions.between(kit.chunk, y.width, c.stride[1] * x.pitch, y.right)
    from_left = x.start - c.padding[0] * x.row - c.padding[1] * x.pitch

    def block(group: Number, first: Number, count: int, part: Number) -> None:
        o = f.index((group, outputs), first)
        start = [ZERO if c.bias is None else kit.weight(f, "%pb", o, q) for q in range(count)]
        w = kit.packed_block(f, "%pw", o, inputs * c.taps, count, part)

        def row(r: Number) -> None:
            image = f.at("%px", from_left, (group, inputs * x.channel), (r, c.stride[0] * x.row))
            to = row_of(f, "%py", y, o, r)
            Row(
                kit, f, (count, most_positions), at, image, (x.channel, x.row, at.source), w, c.kernel, c.kernel[0],
                lambda p, size: range(c.kernel[1]),
            ).store(
                inputs,
                lambda q, n, p: f.at(to, n, (p, at.target), q * y.channel),
                lambda q, n, p: start[q],
                lambda value, q, n, p: f.where_positive(value, value) if c.relu else value,
            )  # fmt: skip

        f.loop(y.height, row)

    def parts(group: Number, first: Number, count: int) -> None:
        kit.parts(f, lambda part: block(group, first, count, part))

    f.loop(c.groups, lambda g: f.blocks(outputs, most_outputs, lambda o, count: parts(g, o, count)))
    return f.done()


def input_gradient(kit: Kit, name: str, c: Convolution, g: Grid, dx: Grid, x: Grid | None) -> Function:
    """The gradient of the input: a convolution of g, the gradient of the output, by the weights packed `back`.

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
    most_inputs, most_positions = kit.block(inputs, MANY)
    at = Positions.between(kit.chunk, dx.width, kit.chunk, dx.right)
    samples = kit.chunk if dx.right == kit.chunk else 1  # of a pixel, next to each other in a line

    def useful(first: int, size: int) -> range:
        """Taps that meet g from one of these positions."""
        left, right = first // samples, (first + size - 1) // samples
        return range(max(0, beside - right), min(kw, beside + width - left))

    def block(j: Number, first_input: Number, count: int, part: Number) -> None:
        first = f.index((j, inputs), first_input)
        own = kit.packed_block(f, "%pw", first, outputs * c.taps, count, part)

        def row(y: Number) -> None:
            skipped = f.larger(f.index((y, -1), above), 0)
            rows = f.index(f.smaller(kh, f.index((y, -1), height + above)), (skipped, -1))
            source = f.at("%pg", (j, outputs * g.channel), (y, g.row), (skipped, g.row), -above * g.row)
            w = kit.packed_at(f, own, (skipped, kw * count))
            to = row_of(f, "%pdx", dx, first, y)
            on = row_of(f, "%px", x, first, y) if x else ""

            def masked(value: str, q: int, n: Number, p: Number) -> str:
                if x is None:
                    return value
                return f.where_positive(f.load(f.at(on, n, (p, at.source), q * x.channel)), value)

            Row(
                kit, f, (count, most_positions), at, source, (g.channel, g.row, at.source), w, c.kernel, rows, useful
            ).store(
                outputs,
                lambda q, n, p: f.at(to, n, (p, at.target), q * dx.channel),
                lambda q, n, p: ZERO,
                masked,
            )  # fmt: skip

        f.loop(dx.height, row)

    def parts(j: Number, i: Number, count: int) -> None:
        kit.parts(f, lambda part: block(j, i, count, part))

    f.loop(c.groups, lambda j: f.blocks(inputs, most_inputs, lambda i, count: parts(j, i, count)))
    return f.done()


def weight_gradient(kit: Kit, name: str, c: Convolution, x: Grid, g: Grid) -> Function:
    """dw and db of a chunk, added to what is there; g is the gradient of the output, before ReLU.

    for row of g, group:
        for block of outputs, input, row of taps:
            for line, position, tap: dw[output][input][tap] += g[output][position] x[input][position + tap]
    """
    f = Function(kit.module, name, "px", "pg", "pdw", "pdb")
    inputs, outputs = c.group
    kh, kw = c.kernel
    at = Positions.between(kit.chunk, g.width, c.stride[1] * x.pitch, g.right)
    from_left = x.start - c.padding[0] * x.row - c.padding[1] * x.pitch

    def bias(o: Number, row: Number) -> None:
        values = row_of(f, "%pg", g, o, row)

        def add(n: Number, total: str) -> list[str]:
            one = f.at(values, n)
            return f.loop(at.length, lambda p, s: [f.add(s, f.load(f.at(one, (p, at.target))))], [total])

        to = f.at("%pdb", o)
        f.store(f.loop(at.lines, add, [f.load(to)])[0], to)

    def taps(row: Number, i: Number, o: Number, count: int, ky: Number) -> None:
        """`o` and `i` count all channels but, in the weights, the inputs of a group only."""
        own = f.op(f"urem i64 {i}, {inputs}") if c.groups > 1 else i
        start = f.at("%pdw", (o, inputs * c.taps), own, (ky, kw * inputs))
        to = [f.at(start, q * inputs * c.taps + t * inputs) for q in range(count) for t in range(kw)]
        image = f.at("%px", from_left, (i, x.channel), (row, c.stride[0] * x.row), (ky, x.row))
        values = row_of(f, "%pg", g, o, row)

        def position(n: Number, p: Number, *sums: str) -> list[str]:
            gs = [f.load(f.at(values, n, (p, at.target), q * g.channel)) for q in range(count)]
            xs = [f.load(f.at(image, n, (p, at.source), t * x.pitch)) for t in range(kw)]
            return outer(f, sums, gs, xs)

        def line(n: Number, *sums: str) -> list[str]:
            return f.loop(at.length, lambda p, *sums: position(n, p, *sums), sums)

        def part(_: Number) -> None:
            for value, place in zip(f.loop(at.lines, line, [f.load(place) for place in to]), to):
                f.store(value, place)

        kit.parts(f, part)

    def group(row: Number, j: Number) -> None:
        def block(first: Number, count: int) -> None:
            o = f.index((j, outputs), first)
            f.loop(inputs, lambda i: f.loop(kh, lambda k: taps(row, f.index((j, inputs), i), o, count, k)))

        f.blocks(outputs, kit.machine.rows_beside(kw), block)

    def whole_row(row: Number) -> None:
        if c.bias is not None:
            f.loop(c.outputs, lambda o: bias(o, row))
        f.loop(c.groups, lambda j: group(row, j))

    f.loop(g.height, whole_row)
    return f.done()
