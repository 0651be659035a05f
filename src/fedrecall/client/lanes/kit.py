"""What all kernels of a program share: the machine they are for, and what is in a lane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fedrecall.client.lanes.ir import FLOAT, LANES, UNIT, Function, Module, Number, Term
from fedrecall.client.lanes.layers import Grid


@dataclass(frozen=True)
class Machine:
    """How many floats a register has, and how many sums are held in registers. It decides how fast the code is, and
    none of its bits.

    These were the fastest of the blocks tried by benchmarks/lanes.py; one that does not fit costs half the speed.
    """

    lanes: int
    products: tuple[int, int]  # of a convolution: output channels, positions
    products_of_clients: tuple[int, int]  # the same, where weights are vectors too
    sums: int  # of a convolution's weight gradient
    outer: tuple[int, int]  # of a product of matrices


WIDE = Machine(LANES, (6, 2), (6, 4), 15, (5, 5))  # 32 registers of sixteen floats: AVX-512
NARROW = Machine(8, (4, 3), (4, 3), 10, (4, 3))  # 16 of eight: AVX2
NEON = Machine(4, (6, 4), (6, 4), 15, (5, 5))  # 32 of four


@dataclass(frozen=True)
class Kit:
    """A client in each lane: then a weight is a unit. Or a sample of one client: then it is a float."""

    clients: bool
    chunk: int  # samples (units) that go through the layers on images together; the order of sums depends on it
    machine: Machine
    module: Module = field(default_factory=Module)

    @property
    def products(self) -> tuple[int, int]:
        return self.machine.products_of_clients if self.clients else self.machine.products

    @property
    def weight_size(self) -> int:
        return UNIT if self.clients else FLOAT

    def weight_at(self, f: Function, address: str, *terms: Term) -> str:
        return f.at(address, *terms, size=self.weight_size)

    def weight(self, f: Function, address: str, *terms: Term) -> str:
        """A weight in every lane."""
        place = self.weight_at(f, address, *terms)
        return f.load(place) if self.clients else f.spread(place)

    def packed_at(self, f: Function, address: str, *terms: Term) -> str:
        """Where a packed weight lies: a float, or that of the clients of one part."""
        return f.at(address, *terms, size=self.machine.lanes * FLOAT if self.clients else FLOAT)

    def packed(self, f: Function, address: str, index: int) -> str:
        place = self.packed_at(f, address, index)
        return f.load_here(place) if self.clients else f.spread(place)

    def parts(self, f: Function, body: Callable[[Number], object]) -> None:
        f.parts(self.machine.lanes, body)


@dataclass(frozen=True)
class Positions:
    """The pixels of a row and the samples of the chunk, as `lines` rows of `length` positions.

    Where neighbouring pixels are neighbours in both grids, it is one line through all samples.
    """

    lines: int
    length: int
    source: int  # units from a position to the next
    target: int

    @classmethod
    def between(cls, chunk: int, width: int, source: int, target: int) -> Positions:
        if source == target == chunk:
            return cls(1, width * chunk, 1, 1)
        return cls(chunk, width, source, target)


def row_of(f: Function, address: str, grid: Grid, channel: Number, row: Number) -> str:
    """The first pixel of a row of an image."""
    return f.at(address, grid.start, (channel, grid.channel), (row, grid.down))
