"""Kernels of linear layers on features [feature][unit]: forward, input gradient and weight gradient."""

from __future__ import annotations

from dataclasses import replace

from fedrecall.client.lanes.kernels.context import KernelContext
from fedrecall.client.lanes.kernels.ir import FLOAT, LANES, ZERO, Function, Number
from fedrecall.client.lanes.kernels.layers import Linear
from fedrecall.client.lanes.kernels.products import Factor, Product
from fedrecall.client.lanes.kernels.vectors import Give


def forward(kit: KernelContext, name: str, c: Linear, units: int) -> Function:
    """Return the kernel of y = ReLU(bias + w x).

    for output, unit:
        for feature: y[output][unit] += w[output][feature] x[feature][unit]
    """
    f = Function(kit.module, name, "px", "pw", "pb", "py")
    w, x = Factor("%pw", c.inputs, 1, floats=not kit.clients), Factor("%px", 1, units)
    Product(kit, f, w, x, c.outputs, units, c.inputs).store(
        lambda o, u: f.at("%py", (o, units), u),
        lambda o, u: ZERO if c.bias is None else kit.weight(f, "%pb", o),
        lambda value, o, u: f.where_positive(value, value) if c.relu else value,
    )
    return f.done()


def input_gradient(kit: KernelContext, name: str, c: Linear, units: int, *, after_relu: bool) -> Function:
    """Return the kernel of dx = w^T g, which is zero where x is if x is an output of ReLU.

    for feature, unit:
        for output: dx[feature][unit] += w[output][feature] g[output][unit]
    """
    f = Function(kit.module, name, "pg", "pw", "px", "pdx")
    w, g = Factor("%pw", 1, c.inputs, floats=not kit.clients), Factor("%pg", 1, units)
    Product(kit, f, w, g, c.inputs, units, c.outputs).store(
        lambda i, u: f.at("%pdx", (i, units), u),
        lambda i, u: ZERO,
        lambda value, i, u: f.where_positive(f.load(f.at("%px", (i, units), u)), value) if after_relu else value,
    )
    return f.done()


def weight_gradient(kit: KernelContext, name: str, c: Linear, units: int, give: Give) -> Function:
    """Return the kernel of dw = g x^T and db with a client per lane, each passed to `give` at once.

    for output, feature:
        for unit: dw[output][feature] += g[output][unit] x[feature][unit]
    """
    f = Function(kit.module, name, "pg", "px", "pw", "prate")
    g, x = Factor("%pg", units, 1), Factor("%px", units, 1)
    Product(kit, f, g, x, c.outputs, c.inputs, units).give(
        lambda o, i: ZERO, lambda value, o, i: give(f, value, f.index(c.weight, (o, c.inputs), i))
    )
    if c.bias is not None:
        at = c.bias
        f.loop(c.outputs, lambda o: give(f, bias_sum(f, o, units), f.index(at, o)))
    return f.done()


def bias_sum(f: Function, o: Number, units: int) -> str:
    """Return the sum over units of an output's gradient."""
    return f.loop(units, lambda u, s: [f.add(s, f.load(f.at("%pg", (o, units), u)))], [ZERO])[0]


def turned(kit: KernelContext, name: str, c: Linear, units: int) -> Function:
    """Return the kernel that transposes x to [sample][feature], padded to whole units of features.

    for group of features, unit
    """
    f = Function(kit.module, name, "px", "pto")
    groups = -(-c.inputs // LANES)

    def turn(j: Number, u: Number) -> None:
        rows = [f.load(f.at("%px", (j, LANES * units), u, r * units)) for r in range(LANES)]
        for r, value in enumerate(f.transposed(rows)):
            f.store(value, f.at("%pto", (u, LANES * groups), j, r * groups))

    f.loop(groups, lambda j: f.loop(units, lambda u: turn(j, u)))
    return f.done()


def weight_gradient_of_one(kit: KernelContext, name: str, c: Linear, units: int) -> Function:
    """Return the kernel of dw = g x^T with a sample per lane: from the transposed x to a plain vector.

    for output, group of sixteen features:
        for sample: dw[output][feature] += g[output][sample] x[sample][feature]
    """
    f = Function(kit.module, name, "pg", "px", "pdw")
    samples, whole, rest = units * LANES, c.inputs // LANES, c.inputs % LANES
    g, x = Factor("%pg", samples, 1, floats=True), Factor("%px", 1, whole + bool(rest))

    def groups(first: int, count: int, kept: int) -> None:
        def end(value: str, o: Number, j: Number) -> None:
            f.store_first(kept, value, f.at("%pdw", (o, c.inputs), (j, LANES), first * LANES, size=FLOAT))

        own = replace(x, address=f.at("%px", first))
        Product(kit, f, g, own, c.outputs, count, samples).give(lambda o, j: ZERO, end)

    if whole:
        groups(0, whole, LANES)
    if rest:
        groups(whole, 1, rest)
    return f.done()


def bias_gradient(kit: KernelContext, name: str, c: Linear, units: int) -> Function:
    """Return the kernel of db in each lane.

    for output, unit
    """
    f = Function(kit.module, name, "pg", "pdb")
    f.loop(c.outputs, lambda o: f.store(bias_sum(f, o, units), f.at("%pdb", o)))
    return f.done()
