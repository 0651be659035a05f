"""The kernel of the loss and its gradient."""

from __future__ import annotations

import math

from fedrecall.client.lanes.kernels.context import KernelContext
from fedrecall.client.lanes.kernels.ir import ZERO, Function, Number


def loss(kit: KernelContext, name: str, classes: int, units: int) -> Function:
    """Return the kernel of softmax cross-entropy of z + offset: g = scale (softmax - one_hot(label)). In lanes
    with non-zero `pactive`, `ploss` += the sum over units of scale (log sum exp(z + offset) - z[label]).

    for unit:
        for class: the largest; for class: exponentials and their sum; for class: g
    """
    f = Function(kit.module, name, "pz", "poffset", "plabel", "pscale", "pactive", "pg", "ploss")

    def unit(u: Number, found: str) -> list[str]:
        scale = f.load(f.at("%pscale", u))
        value = of_unit(f, classes, units, u, scale)
        return [f.fma(scale, f.select(f.compare("une", scale, ZERO), value, ZERO), found)]

    (value,) = f.loop(units, unit, [ZERO])
    active = f.compare("une", f.load("%pactive"), ZERO)
    f.store(f.add(f.load("%ploss"), f.select(active, value, ZERO)), "%ploss")
    return f.done()


def of_unit(f: Function, classes: int, units: int, u: Number, scale: str) -> str:
    """Return the losses of a unit's samples, and store their gradients."""
    label = f.load_whole(f.at("%plabel", u))

    def z(c: Number) -> str:
        return f.load(f.at("%pz", (c, units), u))

    def shifted(c: Number) -> str:
        return f.add(z(c), f.load(f.at("%poffset", c)))

    def larger(c: Number, found: str) -> list[str]:
        value = shifted(c)
        return [f.select(f.compare("ogt", value, found), value, found)]

    (most,) = f.loop(classes, larger, [f.constant(-math.inf)])

    def exponential(c: Number, total: str, own: str) -> list[str]:
        value = exp(f, f.sub(shifted(c), most))
        f.store(value, f.at("%pg", (c, units), u))
        return [f.add(total, value), f.select(f.equal(label, c), f.sub(most, z(c)), own)]

    total, own = f.loop(classes, exponential, [ZERO, ZERO])
    part = f.div(scale, total)

    def gradient(c: Number) -> None:
        at = f.at("%pg", (c, units), u)
        here = f.select(f.equal(label, c), scale, ZERO)
        f.store(f.sub(f.mul(f.load(at), part), here), at)

    f.loop(classes, gradient)
    return f.add(log(f, total), own)


# Polynomials of Cephes (Moshier), so that every machine performs the same operations.
HALVES = (0.693359375, -2.12194440e-4)  # log 2 is their sum; the first has few bits
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
LOG = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
       2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1)  # fmt: skip


def polynomial(f: Function, x: str, coefficients: tuple[float, ...]) -> str:
    total = f.constant(coefficients[0])
    for c in coefficients[1:]:
        total = f.fma(total, x, f.constant(c))
    return total


def exp(f: Function, x: str) -> str:
    """Return exp(x) for x <= 0, zero below -87."""
    low = f.constant(-87.0)
    tiny = f.compare("olt", x, low)
    x = f.select(tiny, low, x)  # NaN stays
    magic = f.constant(1.5 * 2**23)  # adding it rounds to an integer
    rounded = f.fma(x, f.constant(1.44269504088896341), magic)
    n = f.sub(rounded, magic)
    rest = f.fma(n, f.constant(-HALVES[1]), f.fma(n, f.constant(-HALVES[0]), x))
    y = f.add(f.fma(polynomial(f, rest, EXP), f.mul(rest, rest), rest), f.constant(1.0))
    power = f.whole_op("shl", f.whole_op("add", f.bits(rounded), 127 - 0x4B400000), 23)
    return f.select(tiny, ZERO, f.mul(y, f.looks_like(power)))


def log(f: Function, x: str) -> str:
    """Return log(x) for x >= 1, from a power of two and a factor between sqrt(1/2) and sqrt(2)."""
    n = f.whole_op("ashr", f.whole_op("sub", f.bits(x), 0x3F3504F3), 23)  # bits of sqrt(1/2)
    near = f.op(f"sub {f.whole} {f.bits(x)}, {f.whole_op('shl', n, 23)}")
    rest = f.sub(f.looks_like(near), f.constant(1.0))
    n, square = f.op(f"sitofp {f.whole} {n} to {f.vector}"), f.mul(rest, rest)
    y = f.fma(n, f.constant(HALVES[1]), f.mul(f.mul(polynomial(f, rest, LOG), rest), square))
    y = f.fma(n, f.constant(HALVES[0]), f.add(rest, f.fma(square, f.constant(-0.5), y)))
    return f.select(f.compare("uno", x, x), x, y)
