"""What all kernels of a program share: the machine they are for, and what is in a lane."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedrecall.client.lanes.ir import FLOAT, UNIT, Function, Module, Term
from fedrecall.client.lanes.layers import Grid


@dataclass(frozen=True)
class Machine:
    """The vector registers of a processor. They decide how fast the code is, and none of its bits."""

    width: int  # floats in a register
    registers: int

    @property
    def products(self) -> tuple[int, int]:
        """The block of a convolution that is held in registers: output channels, positions."""
        return (6, 4) if self.registers >= 32 else (2, 5)  # 3 x 4 spills with sixteen registers

    @property
    def sums(self) -> int:
        """How many sums of a weight gradient are held in registers."""
        return 20 if self.registers >= 32 else 10

    @property
    def outer(self) -> tuple[int, int]:
        """The block of a product of matrices that is held in registers."""
        return (4, 5) if self.registers >= 32 else (2, 5)


AVX512, AVX2, NEON = Machine(16, 32), Machine(8, 16), Machine(4, 32)


@dataclass(frozen=True)
class Kit:
    """A client in each lane: then a weight is a unit. Or a sample of one client: then it is a float."""

    clients: bool
    chunk: int  # samples (units) that go through the layers on images together; the order of sums depends on it
    machine: Machine
    module: Module = field(default_factory=Module)

    def function(self, name: str, *arguments: str) -> Function:
        """A function that does the same in every lane. Weights are the argument `w`."""
        named = [("uw" if self.clients else "pw") if a == "w" else a for a in arguments]
        return Function(self.module, name, *named, width=self.machine.width)

    @property
    def weight_size(self) -> int:
        return UNIT if self.clients else FLOAT

    @property
    def w(self) -> str:
        return "%uw" if self.clients else "%pw"

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


def row_of(f: Function, address: str, grid: Grid, channel: Term, row: Term) -> str:
    """The first pixel of a row of an image."""
    return f.at(address, grid.start, product(f, channel, grid.channel), product(f, row, grid.down))


def product(f: Function, term: Term, factor: int) -> Term:
    return (f.index(term), factor)
