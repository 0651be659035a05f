"""Sums of products in blocks that stay in registers, and matrix products made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedrecall.client.lanes.kernels.context import KernelContext
from fedrecall.client.lanes.kernels.ir import FLOAT, LANES, UNIT, Function, Number

NEAR = 256  # units that fit in the L1 cache, with room for other data
FEW = 640  # units up to which no stretches are needed
PANEL = 4  # row blocks of a product that share a stretch

Begin = Callable[..., str]  # returns the initial value of a sum, given its indices
End = Callable[..., object]  # consumes a sum, given its indices
Terms = Callable[[Number, Number, Begin, End], None]  # adds terms to all sums: the first, and how many


def outer(f: Function, sums: Sequence[str], left: Sequence[str], right: Sequence[str]) -> list[str]:
    """Return sums[row][column] + left[row] right[column], in row-major order."""
    return [f.fma(a, b, sums[q * len(right) + p]) for q, a in enumerate(left) for p, b in enumerate(right)]


def stretch_of(depth: int, each: int) -> int:
    """Return how many of `depth` terms, which read `each` units each, fit in the cache; all, if they are few."""
    return depth if depth * each <= FEW else max(1, NEAR // each)


def by_stretches(
    f: Function, depth: int, stretch: int, *, every: Callable[[Callable[..., None]], None], terms: Terms,
    out: Callable[..., str], begin: Begin, end: Callable[..., str],
) -> None:  # fmt: skip
    """Store sums, adding terms in stretches whose operands stay in the cache while all sums use them. Between
    stretches the sums are in memory. `every` visits the indices of all sums."""

    def load(*at: Number) -> str:
        return f.load(out(*at))

    def store(value: str, *at: Number) -> None:
        f.store(value, out(*at))

    def some(s: Number) -> None:
        first = f.index((s, stretch))
        terms(first, f.smaller(stretch, f.index(depth, (first, -1))), load, store)

    if depth <= stretch:
        return terms(0, depth, begin, lambda value, *at: store(end(value, *at), *at))
    every(lambda *at: store(begin(*at), *at))
    f.loop(-(-depth // stretch), some)
    every(lambda *at: store(end(load(*at), *at), *at))


@dataclass(frozen=True)
class Factor:
    """A matrix in memory: of units, or of floats that all lanes share."""

    address: str
    own: int  # stride between rows (or columns) of the product
    deep: int  # stride between terms of a sum
    floats: bool = False

    def values(self, f: Function, first: Number, count: int, k: Number) -> list[str]:
        size = FLOAT if self.floats else UNIT
        start = f.at(self.address, (first, self.own), (k, self.deep), size=size)
        places = [f.at(start, q * self.own, size=size) for q in range(count)]
        return [f.spread(place) if self.floats else f.load(place) for place in places]


@dataclass(frozen=True)
class Product:
    """sums[row][column] = the sum over k < depth of left[row][k] right[column][k]."""

    kit: KernelContext
    f: Function
    left: Factor
    right: Factor
    rows: int
    columns: int
    depth: int

    @property
    def block(self) -> tuple[int, int]:
        return self.kit.block(self.rows, self.columns)

    def give(self, begin: Begin, end: End) -> None:
        """
        for block of rows, block of columns, part of the units:
            for k: sums[row][column] += left[row][k] right[column][k]
        """
        self.f.blocks(self.rows, self.block[0], lambda q, rows: self._row(q, rows, 0, self.depth, begin, end))

    def store(self, out: Callable[..., str], begin: Begin, end: Callable[..., str]) -> None:
        """
        for panel of rows, stretch of k:
            for block of rows, block of columns, part of the units:
                for k of the stretch: sums[row][column] += left[row][k] right[column][k]
        """
        f, most = self.f, self.block[0]
        if not self.kit.clients:
            return self.give(begin, lambda value, *at: f.store(end(value, *at), out(*at)))

        def panel(first: Number, rows: int) -> None:
            def every(visit: Callable[..., None]) -> None:
                f.loop(rows, lambda r: f.loop(self.columns, lambda c: visit(f.index(first, r), c)))

            def terms(k: Number, count: Number, begin: Begin, end: End) -> None:
                f.blocks(rows, most, lambda q, size: self._row(f.index(first, q), size, k, count, begin, end))

            stretch = max(LANES, stretch_of(self.depth, self.columns))
            by_stretches(f, self.depth, stretch, every=every, terms=terms, out=out, begin=begin, end=end)

        f.blocks(self.rows, PANEL * most, panel)

    def _row(self, row: Number, rows: int, first: Number, terms: Number, begin: Begin, end: End) -> None:
        """Add some terms to the sums of a block of rows."""
        f = self.f

        def block(column: Number, columns: int) -> None:
            places = [(f.index(row, q), f.index(column, p)) for q in range(rows) for p in range(columns)]

            def term(i: Number, *sums: str) -> list[str]:
                k = f.index(first, i)
                return outer(f, sums, self.left.values(f, row, rows, k), self.right.values(f, column, columns, k))

            sums = f.loop(terms, term, [begin(*at) for at in places])
            for value, at in zip(sums, places):
                end(value, *at)

        f.blocks(self.columns, self.block[1], lambda p, size: self.kit.parts(f, lambda _: block(p, size)))
