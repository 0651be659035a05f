"""The two ends of a step: samples into lanes, and from logits to the loss, its gradient and the update."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedrecall.client.lanes.ir import ADDRESS, FLOAT, LANES, ZERO, Function, Number, real
from fedrecall.client.lanes.kit import Kit
from fedrecall.client.lanes.layers import Grid, Pixels

Give = Callable[[Function, str, Number], None]  # what is done with a gradient and its place in the vector


def choose(kit: Kit, name: str, units: int) -> Function:
    """The samples of a step, and their labels, for all lanes: `prows` are those of the first lane's client, and
    those of the next one's lie `istride` further. Units behind the last sample repeat it.

    for unit, lane
    """
    f = Function(kit.module, name, "prows", "ptarget", "pchosen", "plabels", "istride", "isize")

    def one(u: Number, lane: Number) -> None:
        own, place = f.smaller(u, f.index("%isize", -1)), f.index((u, LANES), lane)
        row = f.at("%prows", (lane, "%istride"), own, size=ADDRESS)
        f.copy(row, f.at("%pchosen", place, size=ADDRESS), "i64")
        label = f.at("%ptarget", f.number(row), size=ADDRESS)
        f.copy(label, f.at("%plabels", place, size=FLOAT), "i32")  # its lower half

    f.loop(units, lambda u: f.loop(LANES, lambda lane: one(u, lane)))
    return f.done()


def gather(kit: Kit, name: str, sample: tuple[int, ...], grid: Grid, pixels: Pixels | None = None) -> Function:
    """A unit of samples, each a row of floats or of bytes, images channels last: a lane each. `prows` are their
    numbers, and those of the next unit, for which memory is asked in time.

    for line of a sample (as many rows of an image as have sixteen numbers), block of sixteen numbers of it
    """
    f = Function(kit.module, name, "px", "prows", "pto")
    lines, places = lines_of(sample, grid)
    length, size = len(places), math.prod(sample)
    step = places_after(sample, grid, length)
    table = constants(kit, f"{name}_places", [f"i64 {place}" for place in places])
    item = 1 if pixels else FLOAT

    def samples(unit: int) -> list[str]:
        numbers = [f.number(f.at("%prows", unit * LANES, lane, size=ADDRESS)) for lane in range(LANES)]
        return [f.at("%px", (number, size), size=item) for number in numbers]

    starts, next_starts = samples(0), samples(1)
    if pixels:
        scale, shift = (
            constants(kit, f"{name}_{kind}", [f"float {real(numbers[i % len(numbers)])}" for i in range(length)])
            for kind, numbers in (("scale", pixels.scale), ("shift", pixels.shift))
        )

    def values_at(line: Number, first: Number) -> list[str]:
        found = [f.at(start, (line, length), first, size=item) for start in starts]
        if not pixels:
            return [f.load_anywhere(at) for at in found]
        factor, added = (f.load_anywhere(f.at(numbers, first, size=FLOAT)) for numbers in (scale, shift))
        return [f.fma(f.load_bytes(at), factor, added) for at in found]

    def block(line: Number, first: Number) -> None:
        values = values_at(line, first)
        for start in next_starts:
            f.prefetch(f.at(start, (line, length), first, size=item))
        for k, value in enumerate(f.transposed(values)):
            at = f.number(f.at(table, first, k, size=ADDRESS))
            f.store(value, f.at("%pto", at, (line, step)))

    def whole_line(line: Number) -> None:
        f.loop(length // LANES, lambda b: block(line, f.index((b, LANES))))
        if length % LANES:
            block(line, length - LANES)  # some of them once more

    f.loop(lines, whole_line)
    return f.done()


def constants(kit: Kit, name: str, values: list[str]) -> str:
    """A table in the module, and its address."""
    kind = values[0].split()[0]
    kit.module.declared.add(f"@{name} = private constant [{len(values)} x {kind}] [{', '.join(values)}]")
    return f"@{name}"


def lines_of(sample: tuple[int, ...], grid: Grid) -> tuple[int, list[int]]:
    """How many lines a sample has, and where the numbers of the first one go."""
    if len(sample) == 1:
        return 1, [i * grid.channel for i in range(sample[0])]
    channels, height, width = sample
    dividers = [rows for rows in range(1, height + 1) if height % rows == 0]
    rows = next(rows for rows in dividers if rows * width * channels >= LANES)
    return height // rows, [
        grid.start + c * grid.channel + y * grid.down + x * grid.right
        for y in range(rows)
        for x in range(width)
        for c in range(channels)
    ]


def places_after(sample: tuple[int, ...], grid: Grid, length: int) -> int:
    """Units from a line's places to those of the next."""
    return 0 if len(sample) == 1 else length // (sample[0] * sample[2]) * grid.down


def loss(kit: Kit, name: str, classes: int, units: int) -> Function:
    """Softmax cross-entropy of z + offset: g = scale (softmax - one at the label). Where the rate is not zero,
    `ploss` grows by the sum over samples of scale (log of the sum of exp(z + offset) - the label's z).

    for unit:
        for class: the largest; for class: exponentials and their sum; for class: g
    """
    f = Function(kit.module, name, "pz", "poffset", "plabel", "pscale", "prate", "pg", "ploss")

    def unit(u: Number, found: str) -> list[str]:
        label, scale = f.load_whole(f.at("%plabel", u)), f.load(f.at("%pscale", u))

        def z(c: Number) -> str:
            return f.load(f.at("%pz", (c, units), u))

        def shifted(c: Number) -> str:
            return f.add(z(c), f.load(f.at("%poffset", c)))

        def larger(c: Number, found: str) -> list[str]:
            value = shifted(c)
            return [f.select(f.compare("ogt", value, found), value, found)]

        (most,) = f.loop(classes, larger, [f.constant(-math.inf)])

        def exponential(c: Number, total: str, own: str) -> list[str]:
            value = f.exp(f.sub(shifted(c), most))
            f.store(value, f.at("%pg", (c, units), u))
            return [f.add(total, value), f.select(f.equal(label, c), f.sub(most, z(c)), own)]

        total, own = f.loop(classes, exponential, [ZERO, ZERO])
        part = f.div(scale, total)

        def gradient(c: Number) -> None:
            at = f.at("%pg", (c, units), u)
            here = f.select(f.equal(label, c), scale, ZERO)
            f.store(f.sub(f.mul(f.load(at), part), here), at)

        f.loop(classes, gradient)
        counts = f.compare("une", scale, ZERO)
        return [f.fma(scale, f.select(counts, f.add(f.log(total), own), ZERO), found)]

    (value,) = f.loop(units, unit, [ZERO])
    active = f.compare("une", f.load("%prate"), ZERO)
    f.store(f.add(f.load("%ploss"), f.select(active, value, ZERO)), "%ploss")
    return f.done()


def update(f: Function, g: str, at: Number, *, momentum: float, decay: float, velocity: int) -> None:
    """w += rate (g + decay w), or along the velocity, which lies `velocity` units behind the weights.

    The rate is negative, or zero in lanes that are done: those keep their weights, whatever g is.
    """
    place, rate = f.at("%pw", at), f.load("%prate")
    w = f.load(place)
    if decay:
        g = f.fma(f.constant(decay), w, g)
    if momentum:
        behind = f.at(place, velocity)
        g = f.fma(f.constant(momentum), f.load(behind), g)
        f.store(g, behind)
    g = f.select(
        f.compare("une", rate, ZERO), g, f.constant(-0.0)
    )  # to add that to w changes not even a zero's sign
    f.store(f.fma(rate, g, w), place)


def start(kit: Kit, name: str, count: int, cleared: int) -> Function:
    """A vector of so many floats in every lane, and so many units of zeros behind it."""
    f = Function(kit.module, name, "pfrom", "pw")
    f.loop(count, lambda i: f.store(f.spread(f.at("%pfrom", i, size=FLOAT)), f.at("%pw", i)))
    if cleared:
        f.loop(cleared, lambda i: f.store(ZERO, f.at("%pw", count, i)))
    return f.done()


def add_up(kit: Kit, name: str, count: int) -> Function:
    """sums += share w, of a vector of so many units; each lane has a share."""
    f = Function(kit.module, name, "pw", "pshare", "psums")
    share = f.load("%pshare")

    def add(i: Number) -> None:
        place = f.at("%psums", i)
        f.store(f.fma(share, f.load(f.at("%pw", i)), f.load(place)), place)

    f.loop(count, add)
    return f.done()


def taken(f: Function, place: str) -> str:
    """A sum that is complete; the next one begins there."""
    value = f.load(place)
    f.store(ZERO, place)
    return value


def move(kit: Kit, name: str, give: Give) -> Function:
    """Sums taken and given away that lie next to each other, as their parameters from `ifirst` on do."""
    f = Function(kit.module, name, "psums", "pw", "prate", "ifirst", "icount")
    f.loop("%icount", lambda i: give(f, taken(f, f.at("%psums", i)), f.index("%ifirst", i)))
    return f.done()


def lane_sums(kit: Kit, name: str) -> Function:
    """Units taken and made floats, each the sum over its lanes, by halves: sixteen at a time.

    for group of sixteen units
    """
    f = Function(kit.module, name, "psums", "pto", "igroups")

    def group(i: Number) -> None:
        rows = f.transposed([taken(f, f.at("%psums", (i, LANES), r)) for r in range(LANES)])
        while len(rows) > 1:
            half = len(rows) // 2
            rows = [f.add(a, b) for a, b in zip(rows[:half], rows[half:])]
        f.store(rows[0], f.at("%pto", i))

    f.loop("%igroups", group)
    return f.done()
