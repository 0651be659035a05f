"""Kernels that scale features [feature][unit] to one length, forward and backward."""

from __future__ import annotations

from fedrecall.client.lanes.kernels.context import KernelContext
from fedrecall.client.lanes.kernels.ir import ZERO, Function, Number
from fedrecall.client.lanes.kernels.layers import Linear


def forward(kit: KernelContext, name: str, c: Linear, units: int) -> Function:
    """Return the kernel of y = x length / n with n = sqrt(sum x^2 + epsilon); `pn` holds the units' 1 / n.

    for unit:
        for feature: the sum; for feature: y
    """
    f = Function(kit.module, name, "px", "py", "pn")

    def unit(u: Number) -> None:
        def square(i: Number, total: str) -> list[str]:
            x = f.load(f.at("%px", (i, units), u))
            return [f.fma(x, x, total)]

        (total,) = f.loop(c.inputs, square, [f.constant(c.epsilon)])
        inverse = f.div(f.constant(1.0), f.sqrt(total))
        f.store(inverse, f.at("%pn", u))
        factor = f.mul(inverse, f.constant(c.length))

        def scale(i: Number) -> None:
            f.store(f.mul(f.load(f.at("%px", (i, units), u)), factor), f.at("%py", (i, units), u))

        f.loop(c.inputs, scale)

    f.loop(units, unit)
    return f.done()


def backward(kit: KernelContext, name: str, c: Linear, units: int, *, after_relu: bool) -> Function:
    """Return the kernel of dx = (length / n) (g - x (x g) / n^2), which is zero where x is if x is after ReLU.

    for unit:
        for feature: the product x g; for feature: dx
    """
    f = Function(kit.module, name, "pg", "px", "pn", "pdx")

    def unit(u: Number) -> None:
        inverse = f.load(f.at("%pn", u))

        def product(i: Number, total: str) -> list[str]:
            return [f.fma(f.load(f.at("%px", (i, units), u)), f.load(f.at("%pg", (i, units), u)), total)]

        (along,) = f.loop(c.inputs, product, [ZERO])
        share = f.mul(f.mul(along, inverse), inverse)
        factor = f.mul(inverse, f.constant(c.length))

        def gradient(i: Number) -> None:
            x, g = f.load(f.at("%px", (i, units), u)), f.load(f.at("%pg", (i, units), u))
            value = f.mul(factor, f.sub(g, f.mul(x, share)))
            f.store(f.where_positive(x, value) if after_relu else value, f.at("%pdx", (i, units), u))

        f.loop(c.inputs, gradient)

    f.loop(units, unit)
    return f.done()
