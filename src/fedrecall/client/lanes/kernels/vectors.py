"""Kernels on weight vectors and gradient sums: initialisation, SGD, and sums over lanes."""

from __future__ import annotations

from collections.abc import Callable

from fedrecall.client.lanes.kernels.context import KernelContext
from fedrecall.client.lanes.kernels.ir import FLOAT, LANES, ZERO, Function, Number

Give = Callable[[Function, str, Number], None]  # consumes a gradient and its index in the vector


def update(f: Function, g: str, at: Number, *, momentum: float, decay: float, velocity: int) -> None:
    """Emit w += rate (g + decay w), or along the velocity, which starts `velocity` units after the weights.

    `prate` holds the negative rate of each lane, then a flag: non-zero in lanes that still take steps. The other
    lanes keep their weights, whatever g is.
    """
    place, rate, active = f.at("%pw", at), f.load("%prate"), f.load(f.at("%prate", 1))
    w = f.load(place)
    if decay:
        g = f.fma(f.constant(decay), w, g)
    if momentum:
        behind = f.at(place, velocity)
        g = f.fma(f.constant(momentum), f.load(behind), g)
        f.store(g, behind)
    none = f.constant(-0.0)  # adding it to w does not even change a zero's sign
    g = f.select(f.compare("une", active, ZERO), g, none)
    f.store(f.fma(rate, g, w), place)


def copy_weights(kit: KernelContext, name: str, count: int, cleared: int) -> Function:
    """Return the kernel that copies `count` floats to every lane and clears `cleared` units after them."""
    f = Function(kit.module, name, "pfrom", "pw")
    f.loop(count, lambda i: f.store(f.spread(f.at("%pfrom", i, size=FLOAT)), f.at("%pw", i)))
    if cleared:
        f.loop(cleared, lambda i: f.store(ZERO, f.at("%pw", count, i)))
    return f.done()


def add_up(kit: KernelContext, name: str, count: int) -> Function:
    """Return the kernel of sums += the sum over lanes of share w; `count` is a multiple of sixteen.

    for group of sixteen units
    """
    f = Function(kit.module, name, "pw", "pshare", "psums")
    share = f.load("%pshare")

    def group(i: Number) -> None:
        units = [f.mul(share, f.load(f.at("%pw", (i, LANES), r))) for r in range(LANES)]
        f.store(f.add(f.load(f.at("%psums", i)), lane_total(f, units)), f.at("%psums", i))

    f.loop(count // LANES, group)
    return f.done()


def lane_total(f: Function, units: list[str]) -> str:
    """Return the sum over lanes of each of sixteen units, by pairwise addition."""
    rows = f.transposed(units)
    while len(rows) > 1:
        half = len(rows) // 2
        rows = [f.add(a, b) for a, b in zip(rows[:half], rows[half:])]
    return rows[0]


def take_sum(f: Function, place: str) -> str:
    """Return a complete sum, and reset it to zero."""
    value = f.load(place)
    f.store(ZERO, place)
    return value


def pass_on_sums(kit: KernelContext, name: str, give: Give) -> Function:
    """Return the kernel that passes consecutive sums, for the parameters from `ifirst` on, to `give`."""
    f = Function(kit.module, name, "psums", "pw", "prate", "ifirst", "icount")
    f.loop("%icount", lambda i: give(f, take_sum(f, f.at("%psums", i)), f.index("%ifirst", i)))
    return f.done()


def lane_sums(kit: KernelContext, name: str) -> Function:
    """Return the kernel that stores the sum over lanes of each unit as a float and resets the unit.

    for group of sixteen units
    """
    f = Function(kit.module, name, "psums", "pto", "igroups")

    def group(i: Number) -> None:
        units = [take_sum(f, f.at("%psums", (i, LANES), r)) for r in range(LANES)]
        f.store(lane_total(f, units), f.at("%pto", i))

    f.loop("%igroups", group)
    return f.done()


def decay(kit: KernelContext, name: str, count: int, share: float) -> Function:
    """Return the kernel of g += share w; `count` is a multiple of sixteen."""
    f = Function(kit.module, name, "pw", "pg")

    def unit(i: Number) -> None:
        place = f.at("%pg", i)
        f.store(f.fma(f.constant(share), f.load(f.at("%pw", i)), f.load(place)), place)

    f.loop(count // LANES, unit)
    return f.done()


def descend(kit: KernelContext, name: str, count: int, momentum: float) -> Function:
    """Return the kernel of w += rate g, or w += rate v with v = momentum v + g; the rate is negative."""
    f = Function(kit.module, name, "pw", "pg", "pv", "prate")
    rate = f.spread("%prate")

    def unit(i: Number) -> None:
        g, w = f.load(f.at("%pg", i)), f.at("%pw", i)
        if momentum:
            v = f.at("%pv", i)
            g = f.fma(f.constant(momentum), f.load(v), g)
            f.store(g, v)
        f.store(f.fma(rate, g, f.load(w)), w)

    f.loop(count // LANES, unit)
    return f.done()
