"""Kernels that load samples into lanes."""

from __future__ import annotations

import math

from fedrecall.client.lanes.kernels.context import KernelContext
from fedrecall.client.lanes.kernels.ir import ADDRESS, FLOAT, LANES, Function, Number
from fedrecall.client.lanes.kernels.layers import Grid, Pixels


def select_samples(kit: KernelContext, name: str, units: int) -> Function:
    """Return the kernel that selects a step's samples and labels for all lanes. `prows` holds the rows of the
    first lane's client; those of the next are `istride` further. Units after the last sample repeat it.

    for unit, lane
    """
    f = Function(kit.module, name, "prows", "ptarget", "pchosen", "plabels", "istride", "isize")

    def one(u: Number, lane: Number) -> None:
        own, place = f.smaller(u, f.index("%isize", -1)), f.index((u, LANES), lane)
        row = f.at("%prows", (lane, "%istride"), own, size=ADDRESS)
        f.copy("i64", row, f.at("%pchosen", place, size=ADDRESS))
        label = f.at("%ptarget", f.number(row), size=ADDRESS)
        f.copy("i32", label, f.at("%plabels", place, size=FLOAT))  # the lower half of an int64

    f.loop(units, lambda u: f.loop(LANES, lambda lane: one(u, lane)))
    return f.done()


def gather(kit: KernelContext, name: str, sample: tuple[int, ...], grid: Grid, *, pixels: bool) -> Function:
    """Return the kernel that loads a unit of samples, one per lane: floats or bytes, images channels last. `prows`
    holds the rows of this unit and of the next, which is prefetched; `ppixels` is the `pixel_table`.

    for block of sixteen numbers of a sample
    """
    f = Function(kit.module, name, "px", "ppixels", "prows", "pto")
    size, item = math.prod(sample), 1 if pixels else FLOAT
    table = constants(kit, f"{name}_places", [f"i64 {place}" for place in places_of(sample, grid)])

    def samples(unit: int) -> list[str]:
        numbers = [f.number(f.at("%prows", unit * LANES, lane, size=ADDRESS)) for lane in range(LANES)]
        return [f.at("%px", (number, size), size=item) for number in numbers]

    starts, next_starts = samples(0), samples(1)

    def block(first: Number) -> None:
        found = [f.at(start, first, size=item) for start in starts]
        values = scaled(f, sample[0], first, found) if pixels else [f.load_anywhere(at) for at in found]
        for start in next_starts:
            f.prefetch(f.at(start, first, size=item))
        for k, value in enumerate(f.transposed(values)):
            f.store(value, f.at("%pto", f.number(f.at(table, first, k, size=ADDRESS))))

    f.loop(size // LANES, lambda b: block(f.index((b, LANES))))
    if size % LANES:
        block(size - LANES)  # overlaps the block before
    return f.done()


def places_of(sample: tuple[int, ...], grid: Grid) -> list[int]:
    """Return the place of each number of a sample; features are an image of one pixel."""
    channels, height, width = (*sample, 1, 1)[:3]
    pixels = [grid.start + y * grid.down + x * grid.right for y in range(height) for x in range(width)]
    return [pixel + c * grid.channel for pixel in pixels for c in range(channels)]


def pixel_table(pixels: Pixels) -> list[float]:
    """Return the scales of sixteen consecutive bytes, starting from any channel, and then the shifts."""
    channels = len(pixels.scale)
    return [numbers[i % channels] for numbers in (pixels.scale, pixels.shift) for i in range(LANES + channels)]


def scaled(f: Function, channels: int, first: Number, found: list[str]) -> list[str]:
    """Return sixteen bytes from each place, normalised; all places start at the same channel."""
    channel = f.rest(first, channels)
    scale = f.load_anywhere(f.at("%ppixels", channel, size=FLOAT))
    shift = f.load_anywhere(f.at("%ppixels", LANES + channels, channel, size=FLOAT))
    return [f.fma(f.load_bytes(at), scale, shift) for at in found]


def constants(kit: KernelContext, name: str, values: list[str]) -> str:
    """Declare a table in the module, and return its address."""
    kind = values[0].split()[0]
    kit.module.declared.add(f"@{name} = private constant [{len(values)} x {kind}] [{', '.join(values)}]")
    return f"@{name}"
