"""What all kernels of a program share: the machine they are for, and what is in a lane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fedrecall.client.lanes.kernels.ir import FLOAT, LANES, UNIT, Function, Module, Number, Term, evenly
from fedrecall.client.lanes.kernels.layers import Grid


@dataclass(frozen=True)
class Machine:
    """The registers of a processor. They decide how fast the code is, and none of its bits."""

    lanes: int  # floats of a register
    registers: int
    spare: int = 0  # registers that floats take which are spread over the lanes


AVX512 = Machine(LANES, 32, spare=2)
AVX2 = Machine(8, 16)
NEON = Machine(4, 32)


@dataclass(frozen=True)
class Kit:
    """A client in each lane: then a weight is a unit. Or a sample of one client: then it is a float."""

    clients: bool
    chunk: int  # samples (units) that go through the layers on images together; the order of sums depends on it
    machine: Machine
    module: Module = field(default_factory=Module)

    # Blocks of sums that stay in registers, with a value of each column and one of a row: one that does not fit
    # costs half the speed.

    @property
    def registers(self) -> int:
        return self.machine.registers - (0 if self.clients else self.machine.spare)

    def block(self, rows: int, columns: int) -> tuple[int, int]:
        """The block by which a product of so many rows and columns takes the least time: benchmarks/lanes.py."""
        sides = range(1, self.registers)
        fitting = [(q, p) for q in sides for p in sides if (q + 1) * p < self.registers]

        def work(most: tuple[int, int]) -> float:
            each = ((a * b, q, p) for _, a, q in evenly(rows, most[0]) for _, b, p in evenly(columns, most[1]))
            return sum(count * self.cost(q, p) for count, q, p in each)

        return min(fitting, key=work)

    def cost(self, rows: int, columns: int) -> float:
        """The work of a term of a block's sums: products, and loads. Weights of clients come from far away."""
        return rows * columns + (rows + columns + 2) / (2 if self.clients else 4)

    def columns_beside(self, rows: int) -> int:
        """The columns of a block of so many rows."""
        return max(1, (self.registers - 1) // (rows + 1))

    def rows_beside(self, columns: int) -> int:
        """The rows of a block of so many columns, whose sums come from memory: larger ones were no faster."""
        return max(1, min(self.registers - 1, 20) // columns - 1)

    def parts(self, f: Function, body: Callable[[Number], object]) -> None:
        """body(part) for the parts of units that fit into a register."""
        f.parts(self.machine.lanes, body)

    # Weights

    @property
    def weight_size(self) -> int:
        return UNIT if self.clients else FLOAT

    def weight_at(self, f: Function, address: str, *terms: Term) -> str:
        return f.at(address, *terms, size=self.weight_size)

    def weight(self, f: Function, address: str, *terms: Term) -> str:
        """A weight in every lane."""
        place = self.weight_at(f, address, *terms)
        return f.load(place) if self.clients else f.spread(place)


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
