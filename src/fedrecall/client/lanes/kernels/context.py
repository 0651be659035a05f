"""The properties that all kernels of a program share: the machine, and the content of a lane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fedrecall.client.lanes.kernels.ir import FLOAT, LANES, UNIT, Function, Module, Number, Term, even_blocks
from fedrecall.client.lanes.kernels.layers import Grid


@dataclass(frozen=True)
class Machine:
    """The vector registers of a processor. They affect the speed of the code, but not its results."""

    lanes: int  # floats per register
    registers: int
    spare: int = 0  # registers for floats that are spread over all lanes


AVX512 = Machine(LANES, 32, spare=2)
AVX2 = Machine(8, 16)
NEON = Machine(4, 32)


@dataclass(frozen=True)
class KernelContext:
    """With `clients`, each lane holds a client, and a weight is a unit; else a sample, and a weight is a float."""

    clients: bool
    chunk: int  # units that pass spatial layers together; the order of sums depends on it
    machine: Machine
    module: Module = field(default_factory=Module)

    # A block of sums must fit in registers with a value of each column and one of a row, or it halves the speed.

    @property
    def registers(self) -> int:
        return self.machine.registers - (0 if self.clients else self.machine.spare)

    def block(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the block of least cost for a product of this size; see benchmarks/lanes.py."""
        sides = range(1, self.registers)
        fitting = [(q, p) for q in sides for p in sides if (q + 1) * p < self.registers]

        def work(most: tuple[int, int]) -> float:
            each = (
                (a * b, q, p) for _, a, q in even_blocks(rows, most[0]) for _, b, p in even_blocks(columns, most[1])
            )
            return sum(count * self.cost(q, p) for count, q, p in each)

        return min(fitting, key=work)

    def cost(self, rows: int, columns: int) -> float:
        """Return the cost of a term of a block's sums: products, and loads, which cost more with `clients`."""
        return rows * columns + (rows + columns + 2) / (2 if self.clients else 4)

    def columns_beside(self, rows: int) -> int:
        """Return the columns that fit in a block of this many rows."""
        return max(1, (self.registers - 1) // (rows + 1))

    def rows_beside(self, columns: int) -> int:
        """Return the rows of a block whose sums come from memory; larger blocks were no faster."""
        return max(1, min(self.registers - 1, 20) // columns - 1)

    def parts(self, f: Function, body: Callable[[Number], object]) -> None:
        """Emit body(part) for the parts of units that fit in a register."""
        f.parts(self.machine.lanes, body)

    # Weights

    @property
    def weight_size(self) -> int:
        return UNIT if self.clients else FLOAT

    def weight_at(self, f: Function, address: str, *terms: Term) -> str:
        return f.at(address, *terms, size=self.weight_size)

    def weight(self, f: Function, address: str, *terms: Term) -> str:
        """Load a weight into every lane."""
        place = self.weight_at(f, address, *terms)
        return f.load(place) if self.clients else f.spread(place)


@dataclass(frozen=True)
class Positions:
    """The pixels of a row and the samples of the chunk, as `lines` rows of `length` positions.

    If pixels are contiguous in both grids, one line covers all samples.
    """

    lines: int
    length: int
    source: int  # units from one position to the next
    target: int

    @classmethod
    def between(cls, chunk: int, width: int, source: int, target: int) -> Positions:
        if source == target == chunk:
            return cls(1, width * chunk, 1, 1)
        return cls(chunk, width, source, target)


def row_address(f: Function, address: str, grid: Grid, channel: Number, row: Number) -> str:
    """Return the address of the first pixel of an image row."""
    return f.at(address, grid.start, (channel, grid.channel), (row, grid.down))
