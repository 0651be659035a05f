"""Products of matrices in blocks that stay in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedrecall.client.lanes.ir import FLOAT, LANES, UNIT, Function, Number, evenly
from fedrecall.client.lanes.kit import Kit

PANEL = 4  # blocks of rows
NEAR = 256  # units that stay in the nearest cache beside all else

Begin = Callable[[Number, Number], str]  # of a row and a column: what their sum begins with
End = Callable[[str, Number, Number], object]  # of a sum, its row and its column: what becomes of it


def outer(f: Function, sums: Sequence[str], left: Sequence[str], right: Sequence[str]) -> list[str]:
    """sums[row][column] + left[row] right[column]; sums are one row after the other."""
    return [f.fma(a, b, sums[q * len(right) + p]) for q, a in enumerate(left) for p, b in enumerate(right)]


@dataclass(frozen=True)
class Factor:
    """A matrix in memory: units, or floats that are the same for all lanes."""

    address: str
    own: int  # places from a row of the product (or a column) to the next
    deep: int  # places from a term of its sums to the next
    floats: bool = False

    def values(self, f: Function, first: Number, count: int, k: Number) -> list[str]:
        size = FLOAT if self.floats else UNIT
        start = f.at(self.address, (first, self.own), (k, self.deep), size=size)
        places = [f.at(start, q * self.own, size=size) for q in range(count)]
        return [f.spread(place) if self.floats else f.load(place) for place in places]


@dataclass(frozen=True)
class Product:
    """sums[row][column] = begin + the sum over k < depth of left[row][k] right[column][k]."""

    kit: Kit
    f: Function
    rows: int
    columns: int
    depth: int
    left: Factor
    right: Factor

    def each(self, begin: Begin, end: End) -> None:
        """
        for block of rows, block of columns, part of the units:
            for k: sums[row][column] += left[row][k] right[column][k]
        """
        self.f.blocks(self.rows, self.kit.machine.outer[0], lambda row, size: self._row(row, size, begin, end))

    def into(self, out: Begin, begin: Begin, end: Callable[[str, Number, Number], str]) -> None:
        """Sums that lie at `out` meanwhile, so that what is used again and again stays in the nearest cache.

        for panel of rows, stretch of k:
            for block of rows, block of columns, part of the units:
                for k of the stretch: sums[row][column] += left[row][k] right[column][k]
        """
        f = self.f
        stretch = max(16, NEAR // self.columns)
        if self.depth <= stretch or self.kit.machine.lanes == LANES:
            return self.each(begin, lambda value, *at: f.store(end(value, *at), out(*at)))

        def panel(first: Number, blocks: Number, size: int) -> None:
            def every(do: Callable[[Number, Number], None]) -> None:
                f.loop(f.index((blocks, size)), lambda r: f.loop(self.columns, lambda c: do(f.index(first, r), c)))

            def some(s: Number) -> None:
                k = f.index((s, stretch))
                terms = k, f.smaller(stretch, f.index(self.depth, (k, -1)))
                f.loop(blocks, lambda b: self._row(f.index(first, (b, size)), size, load, store, terms))

            every(lambda *at: f.store(begin(*at), out(*at)))
            f.loop(-(-self.depth // stretch), some)
            every(lambda *at: store(end(load(*at), *at), *at))

        def load(*at: Number) -> str:
            return f.load(out(*at))

        def store(value: str, *at: Number) -> None:
            f.store(value, out(*at))

        for start, count, size in evenly(self.rows, self.kit.machine.outer[0]):
            def some_rows(j: Number, start=start, count=count, size=size) -> None:
                panel(f.index(start, (j, PANEL * size)), f.smaller(PANEL, f.index(count, (j, -PANEL))), size)
            f.loop(-(-count // PANEL), some_rows)

    def _row(self, row: Number, rows: int, begin: Begin, end: End, terms: tuple[Number, Number] | None = None) -> None:
        def block(column: Number, columns: int) -> None:
            self.kit.parts(self.f, lambda _: self._block(row, rows, column, columns, begin, end, terms or (0, self.depth)))

        self.f.blocks(self.columns, self.kit.machine.outer[1], block)

    def _block(
        self, row: Number, rows: int, column: Number, columns: int, begin: Begin, end: End, terms: tuple[Number, Number]
    ) -> None:
        f = self.f
        places = [(f.index(row, q), f.index(column, p)) for q in range(rows) for p in range(columns)]

        def term(i: Number, *sums: str) -> list[str]:
            k = f.index(terms[0], i)
            return outer(f, sums, self.left.values(f, row, rows, k), self.right.values(f, column, columns, k))

        sums = f.loop(terms[1], term, [begin(*at) for at in places])
        for value, at in zip(sums, places):
            end(value, *at)
