"""Convolutions: forward, and backward by the weights and by the input."""

from __future__ import annotations

from collections.abc import Callable

from fedrecall.client.lanes.ir import FLOAT, ZERO, Function, Number, evenly
from fedrecall.client.lanes.kit import Kit, Positions, row_of
from fedrecall.client.lanes.layers import Convolution, Grid
from fedrecall.client.lanes.products import outer


def pack(kit: Kit, name: str, c: Convolution, *, back: bool) -> Function:
    """Weights [output][tap][input] in the order in which a kernel reads them: [block][input][tap][output].

    `back`: for the gradient of the input, which is a convolution with outputs and inputs exchanged and the taps
    turned round.

        for group, block of outputs, input, tap, output of the block
    """
    f = Function(kit.module, name, "pw", "pto")
    inputs, outputs = c.group
    own, other = (1, inputs * c.taps) if back else (inputs * c.taps, 1)  # from an output, an input to the next
    if back:
        inputs, outputs = outputs, inputs
    def block(group: Number, first: Number, count: int, part: Number) -> None:
        source = kit.weight_at(f, "%pw", (group, inputs * outputs * c.taps), (first, own))
        target = kit.weight_at(f, "%pto", (group, inputs * outputs * c.taps), (first, inputs * c.taps))
        target = kit.packed_at(f, target, (part, count * inputs * c.taps))

        def tap(i: Number, t: Number) -> None:
            turned = f.index((t, -1), c.taps - 1) if back else t
            for o in range(count):
                at = kit.weight_at(f, source, (i, other), (turned, c.group[0]), o * own)
                to = kit.packed_at(f, target, (i, c.taps * count), (t, count), o)
                if kit.clients:
                    f.store_here(f.load(at), to)
                else:
                    f.do(f"store float {f.op(f'load float, ptr {at}, align {FLOAT}')}, ptr {to}, align {FLOAT}")

        f.loop(inputs, lambda i: f.loop(c.taps, lambda t: tap(i, t)))

    def parts(group: Number, first: Number, count: int) -> None:
        if kit.clients:
            kit.parts(f, lambda part: block(group, first, count, part))
        else:
            block(group, first, count, 0)

    most = kit.products[0]
    f.loop(c.groups, lambda g: f.blocks(outputs, most, lambda first, count: parts(g, first, count)))
    return f.done()


def products(
    kit: Kit, f: Function, sums: list[str], block: tuple[int, int], *, x: str, steps: tuple[int, int, int], w: str,
    channels: int, rows: Number, kernel: tuple[int, int], taps: range,
) -> list[str]:  # fmt: skip
    """sums[output][position] += w x, over channels, `rows` rows of taps and the `taps` of each.

    `steps` are the units from a channel, a row and a position of x to the next.
    """
    outputs, positions = block

    def row(x: str, w: str, *sums: str) -> list[str]:
        found = list(sums)
        for t in taps:
            ws = [kit.packed(f, w, t * outputs + o) for o in range(outputs)]
            xs = [f.load(f.at(x, p * steps[2] + t * kit.chunk)) for p in range(positions)]
            found = outer(f, found, ws, xs)
        return found

    def channel(i: Number, *sums: str) -> list[str]:
        image, own = f.at(x, (i, steps[0])), kit.packed_at(f, w, (i, kernel[0] * kernel[1] * outputs))
        return f.loop(
            rows,
            lambda r, *sums: row(
                f.at(image, (r, steps[1])), kit.packed_at(f, own, (r, kernel[1] * outputs)), *sums
            ),
            sums,
        )

    return f.loop(channels, channel, sums)


def forward(kit: Kit, name: str, c: Convolution, x: Grid, y: Grid) -> Function:
    """y = ReLU(bias + w * x), of a chunk; `w` is packed.

    for group, block of outputs, row, line, block of positions:
        for input, row of taps, tap:
            y[output][position] += w[output][input][tap] x[input][position + tap]
    """
    f = Function(kit.module, name, "px", "pw", "pb", "py")
    inputs, outputs = c.group
    most_outputs, most_positions = kit.products
    at = Positions.between(kit.chunk, y.width, c.stride[1] * x.pitch, y.right)
    from_left = x.start - c.padding[0] * x.row - c.padding[1] * x.pitch

    def block(group: Number, first: Number, count: int, part: Number) -> None:
        o = f.index((group, outputs), first)
        start = [ZERO if c.bias is None else kit.weight(f, "%pb", o, q) for q in range(count)]
        w = kit.weight_at(f, "%pw", (o, inputs * c.taps))
        if kit.clients:
            w = kit.packed_at(f, w, (part, count * inputs * c.taps))

        def positions(row: Number, line: Number, p: Number, size: int) -> None:
            image = f.at(
                "%px", from_left, (group, inputs * x.channel), (row, c.stride[0] * x.row), line, (p, at.source)
            )
            sums = products(
                kit, f, [start[q] for q in range(count) for _ in range(size)], (count, size),
                x=image, steps=(x.channel, x.row, at.source), w=w,
                channels=inputs, rows=c.kernel[0], kernel=c.kernel, taps=range(c.kernel[1]),
            )  # fmt: skip
            to = f.at(row_of(f, "%py", y, o, row), line, (p, at.target))
            for q in range(count):
                for s in range(size):
                    value = sums[q * size + s]
                    value = f.where_positive(value, value) if c.relu else value
                    f.store(value, f.at(to, q * y.channel + s * at.target))

        def line(row: Number, n: Number) -> None:
            f.blocks(at.length, most_positions, lambda p, size: positions(row, n, p, size))

        f.loop(y.height, lambda row: f.loop(at.lines, lambda n: line(row, n)))

    def parts(group: Number, first: Number, count: int) -> None:
        kit.parts(f, lambda part: block(group, first, count, part))

    f.loop(c.groups, lambda g: f.blocks(outputs, most_outputs, lambda o, count: parts(g, o, count)))
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

        f.blocks(outputs, max(1, kit.machine.sums // kw), block)

    def whole_row(row: Number) -> None:
        if c.bias is not None:
            f.loop(c.outputs, lambda o: bias(o, row))
        f.loop(c.groups, lambda j: group(row, j))

    f.loop(g.height, whole_row)
    return f.done()


def input_gradient(kit: Kit, name: str, c: Convolution, g: Grid, dx: Grid, x: Grid | None) -> Function:
    """The gradient of the input: a convolution of g, the gradient of the output, by the weights packed `back`.

    `x`, where it is given, is the input and came from ReLU: where it is zero, so is the gradient. Rows of taps
    that lie beside g are left out, and taps that lie beside it for a whole block of positions.

    for group, block of inputs, row, line, block of positions:
        for output, row of taps, tap:
            dx[input][position] += w[output][input][tap] g[output][position - tap]
    """
    f = Function(kit.module, name, "pg", "pw", "px", "pdx")
    inputs, outputs = c.group
    kh, kw = c.kernel
    above, beside = kh - 1 - c.padding[0], kw - 1 - c.padding[1]
    height, width = dx.height - kh + 1 + 2 * c.padding[0], dx.width - kw + 1 + 2 * c.padding[1]  # of stride 1
    most_inputs, most_positions = kit.products
    merged = dx.right == kit.chunk
    at = Positions.between(kit.chunk, dx.width, kit.chunk, dx.right)
    samples = kit.chunk if merged else 1  # of a pixel, next to each other in a line

    def useful(first: int, size: int) -> range:
        """Taps that meet g from one of these positions."""
        left, right = first // samples, (first + size - 1) // samples
        return range(max(0, beside - right), min(kw, beside + width - left))

    def block(j: Number, first_input: Number, count: int, part: Number) -> None:
        first = f.index((j, inputs), first_input)
        own = kit.weight_at(f, "%pw", (first, outputs * c.taps))
        if kit.clients:
            own = kit.packed_at(f, own, (part, count * outputs * c.taps))

        def row(y: Number) -> None:
            skipped = f.larger(f.index((y, -1), above), 0)
            rows = f.index(f.smaller(kh, f.index((y, -1), height + above)), (skipped, -1))
            source = f.at("%pg", (j, outputs * g.channel), (y, g.row), (skipped, g.row), -above * g.row)
            w = kit.packed_at(f, own, (skipped, kw * count))
            to = row_of(f, "%pdx", dx, first, y)
            on = row_of(f, "%px", x, first, y) if x else ""

            def positions(n: Number, p: Number, size: int, taps: range) -> None:
                sums = products(
                    kit, f, [ZERO] * (count * size), (count, size),
                    x=f.at(source, n, (p, at.source)), steps=(g.channel, g.row, at.source), w=w,
                    channels=outputs, rows=rows, kernel=c.kernel, taps=taps,
                )  # fmt: skip
                for q in range(count):
                    for s in range(size):
                        value = sums[q * size + s]
                        if x:
                            own = f.at(on, n, (p, at.source), q * x.channel + s * at.source)
                            value = f.where_positive(f.load(own), value)
                        f.store(value, f.at(to, n, (p, at.target), q * dx.channel + s * at.target))

            def run(n: Number, first: int, times: int, size: int) -> None:
                taps = useful(first, size)
                f.loop(times, lambda i: positions(n, f.index((i, size), first), size, taps))

            def line(n: Number) -> None:
                for first, times, size in alike(at.length, most_positions, useful):
                    run(n, first, times, size)

            f.loop(at.lines, line)

        f.loop(dx.height, row)

    def parts(j: Number, i: Number, count: int) -> None:
        kit.parts(f, lambda part: block(j, i, count, part))

    f.loop(c.groups, lambda j: f.blocks(inputs, most_inputs, lambda i, count: parts(j, i, count)))
    return f.done()


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
