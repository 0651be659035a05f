"""Kernels of max- and mean-pooling, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

from fedrecall.client.lanes.kernels.context import KernelContext, row_address
from fedrecall.client.lanes.kernels.ir import LANES, ZERO, Function, Number, Term
from fedrecall.client.lanes.kernels.layers import Grid, Pooling


def forward(kit: KernelContext, name: str, p: Pooling, x: Grid, y: Grid) -> Function:
    """Return the kernel of y = ReLU(max or mean of each window of x); a max also stores its index, the seat.

    for channel, row, column, sample:
        for row and column of the window
    """
    f = Function(kit.module, name, "px", "py", "pseats")
    seats = [(i, j) for i in range(p.kernel[0]) for j in range(p.kernel[1])]

    def window(channel: Number, row: Number, column: Number, n: Number) -> None:
        first = f.index((row, p.stride[0]))
        corner = f.at(row_address(f, "%px", x, channel, first), (column, p.stride[1] * x.right), n)
        result, *others = [f.load(f.at(corner, i * x.down + j * x.right)) for i, j in seats]
        if p.largest:
            seat = ZERO
            for s, value in enumerate(others, 1):
                here = f.either(f.compare("ogt", value, result), f.compare("uno", value, value))  # as in torch
                result, seat = f.select(here, value, result), f.select_whole(here, f.whole_constant(s), seat)
            f.store_seats(seat, f.at("%pseats", *seat_address(kit, y, channel, row, column, n), size=LANES))
        else:
            for value in others:
                result = f.add(result, value)
            result = f.mul(result, f.constant(1 / len(seats)))
        if p.relu:
            result = f.where_positive(result, result)
        f.store(result, f.at(row_address(f, "%py", y, channel, row), (column, y.right), n))

    every_pixel(kit, f, y, window)
    return f.done()


def backward(kit: KernelContext, name: str, p: Pooling, g: Grid, dx: Grid, x: Grid | None) -> Function:
    """Return the kernel of the input gradient. Pixels of no window are never written and stay zero.

    `x`, if given, is the input, an output of ReLU: the gradient is zero where x is.

    for channel, row, column, sample:
        for row and column of the window: dx gets g, or adds it where windows overlap
    """
    f = Function(kit.module, name, "pg", "px", "pdx", "pseats")
    seats = [(i, j) for i in range(p.kernel[0]) for j in range(p.kernel[1])]
    overlap = p.kernel[0] > p.stride[0] or p.kernel[1] > p.stride[1]
    if overlap:
        f.loop(dx.size, lambda i: f.store(ZERO, f.at("%pdx", i)))

    def window(channel: Number, row: Number, column: Number, n: Number) -> None:
        value = f.load(f.at(row_address(f, "%pg", g, channel, row), (column, g.right), n))
        seat = ""
        if p.largest:
            seat = f.load_seats(f.at("%pseats", *seat_address(kit, g, channel, row, column, n), size=LANES))
        else:
            value = f.mul(value, f.constant(1 / len(seats)))
        first = f.index((row, p.stride[0]))
        corner = f.at(row_address(f, "%pdx", dx, channel, first), (column, p.stride[1] * dx.right), n)
        on = f.at(row_address(f, "%px", x, channel, first), (column, p.stride[1] * x.right), n) if x else ""
        for s, (i, j) in enumerate(seats):
            part = f.select(f.equal(seat, s), value, ZERO) if p.largest else value
            if x:
                part = f.where_positive(f.load(f.at(on, i * x.down + j * x.right)), part)
            to = f.at(corner, i * dx.down + j * dx.right)
            f.store(f.add(f.load(to), part) if overlap else part, to)

    every_pixel(kit, f, g, window)
    return f.done()


def every_pixel(
    kit: KernelContext, f: Function, grid: Grid, body: Callable[[Number, Number, Number, Number], None]
) -> None:
    """Emit body(channel, row, column, sample) for every pixel of a chunk."""

    def row(c: Number, r: Number) -> None:
        f.loop(grid.width, lambda j: f.loop(kit.chunk, lambda n: body(c, r, j, n)))

    f.loop(grid.channels, lambda c: f.loop(grid.height, lambda r: row(c, r)))


def seat_address(kit: KernelContext, y: Grid, channel: Number, row: Number, column: Number, n: Number) -> list[Term]:
    line = y.width * kit.chunk
    return [(channel, y.height * line), (row, line), (column, kit.chunk), n]
