"""LLVM IR as text: functions, counted loops with carried values, vectors of floats.

A `unit` is sixteen floats, one per lane, and memory is counted in units. If registers hold fewer floats, a unit
takes several, and code that needs many registers works on one part of all units at a time. Lanes are independent,
so this does not change the bits of a result.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Any

LANES = 16
FLOAT = 4  # bytes
UNIT = LANES * FLOAT
ADDRESS = 8

Number = int | str  # known at code generation, or the name of a value
Term = Number | tuple[Number, Number]  # a number, or a product
KINDS = {"p": "ptr", "i": "i64"}  # types of arguments, by the first letters of their names
ZERO = "zeroinitializer"


def real(value: float) -> str:
    """Return a float constant in LLVM's notation: the bits of the float32 as a double."""
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    return f"0x{struct.unpack('>Q', struct.pack('>d', rounded))[0]:016X}"


def even_blocks(total: int, most: int) -> list[tuple[int, int, int]]:
    """Split `total` into nearly equal blocks of at most `most`; return (first, number, size) for each size.

    >>> even_blocks(10, 4)
    [(0, 1, 4), (4, 2, 3)]
    """
    count = -(-total // most)
    size, larger = divmod(total, count)
    parts = [(0, larger, size + 1), (larger * (size + 1), count - larger, size)]
    return [part for part in parts if part[1]]


class Module:
    """Functions and their declarations."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.declared: set[str] = set()

    def text(self) -> str:
        return "\n".join([*sorted(self.declared), *self.bodies, ""])


class Function:
    """One function without a result."""

    def __init__(self, module: Module, name: str, *arguments: str) -> None:
        self.module, self.name, self.arguments = module, name, arguments
        head = ", ".join(f"{KINDS[a[0]]}{' noalias' * (KINDS[a[0]] == 'ptr')} %{a}" for a in arguments)
        self.lines = [f"define void @{name}({head}) noinline nounwind {{", "b0:"]
        self._block, self._names = "b0", 0
        self._use(LANES, 0)

    # Text

    def _new(self, prefix: str = "v") -> str:
        self._names += 1
        return f"%{prefix}{self._names}"

    def do(self, text: str) -> None:
        self.lines.append("  " + text)

    def op(self, text: str) -> str:
        name = self._new()
        self.do(f"{name} = {text}")
        return name

    def done(self) -> Function:
        self.do("ret void")
        self.module.bodies.append("\n".join([*self.lines, "}"]))
        return self

    def call(self, other: Function, *values: Number) -> None:
        given = [f"{KINDS[name[0]]} {value}" for name, value in zip(other.arguments, values, strict=True)]
        self.do(f"call void @{other.name}({', '.join(given)})")

    # Integers and addresses

    def index(self, *terms: Term) -> Number:
        """Return the sum of the terms."""
        known, found = 0, list[str]()
        for term in terms:
            a, b = term if isinstance(term, tuple) else (term, 1)
            if isinstance(a, int) and isinstance(b, int):
                known += a * b
            elif 0 not in (a, b):
                factors = [str(x) for x in (a, b) if x != 1]
                found.append(factors[0] if len(factors) == 1 else self.op(f"mul nsw i64 {a}, {b}"))
        if known or not found:
            if not found:
                return known
            found.append(str(known))
        total = found[0]
        for other in found[1:]:
            total = self.op(f"add nsw i64 {total}, {other}")
        return total

    def _one_of(self, how: str, known: Callable[[int, int], int], a: Number, b: Number) -> Number:
        if isinstance(a, int) and isinstance(b, int):
            return known(a, b)
        return self.op(f"select i1 {self.op(f'icmp {how} i64 {a}, {b}')}, i64 {a}, i64 {b}")

    larger = partialmethod(_one_of, "sgt", max)
    smaller = partialmethod(_one_of, "slt", min)

    def quotient(self, number: Number, divisor: int) -> Number:
        """Return the quotient of a non-negative number, rounded down."""
        return number // divisor if isinstance(number, int) else self.op(f"udiv i64 {number}, {divisor}")

    def rest(self, number: Number, divisor: int) -> Number:
        """Return the remainder of a non-negative number."""
        return number % divisor if isinstance(number, int) else self.op(f"urem i64 {number}, {divisor}")

    def at(self, address: str, *terms: Term, size: int = UNIT) -> str:
        """Return the address plus the sum of the terms, in elements of `size` bytes."""
        index = self.index(*terms)
        if index == 0:
            return address
        return self.op(f"getelementptr inbounds [{size} x i8], ptr {address}, i64 {index}")

    def number(self, address: str) -> str:
        """Load a 64-bit integer."""
        return self.op(f"load i64, ptr {address}, align {ADDRESS}")

    def prefetch(self, address: str) -> None:
        """Prefetch memory that will be read soon."""
        self.module.declared.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.do(f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 3, i32 1)")

    # Vectors

    def _use(self, lanes: int, part: Number) -> None:
        """Use vectors of `lanes` lanes: a whole unit, or the part of it from byte `part` on."""
        self.lanes, self._part = lanes, part
        self.vector, self.whole, self.mask = (f"<{lanes} x {kind}>" for kind in ("float", "i32", "i1"))

    def constant(self, value: float) -> str:
        return "<" + ", ".join([f"float {real(value)}"] * self.lanes) + ">"

    def whole_constant(self, value: int) -> str:
        return "<" + ", ".join([f"i32 {value}"] * self.lanes) + ">"

    def load(self, address: str) -> str:
        """Load the current part of a unit."""
        place = self.at(address, self._part, size=1)
        return self.op(f"load {self.vector}, ptr {place}, align {self.lanes * FLOAT}")

    def store(self, value: str, address: str) -> None:
        place = self.at(address, self._part, size=1)
        self.do(f"store {self.vector} {value}, ptr {place}, align {self.lanes * FLOAT}")

    def load_anywhere(self, address: str) -> str:
        """Load from an address that is not aligned to the vector's size."""
        return self.op(f"load {self.vector}, ptr {address}, align {FLOAT}")

    def load_bytes(self, address: str) -> str:
        """Load sixteen bytes from any address, as floats from 0 to 255."""
        small = self.op(f"load <{LANES} x i8>, ptr {address}, align 1")
        return self.op(f"uitofp <{LANES} x i8> {small} to {self.vector}")

    def store_first(self, count: int, value: str, address: str) -> None:
        """Store the current part of a unit to any address, but only lanes among the first `count`."""
        address = self.at(address, self._part, size=1)
        if count == LANES:
            self.do(f"store {self.vector} {value}, ptr {address}, align {FLOAT}")
            return
        name = f"@llvm.masked.store.v{self.lanes}f32.p0"
        self.module.declared.add(f"declare void {name}({self.vector}, ptr, i32 immarg, {self.mask})")
        own = ", ".join(f"i32 {lane * FLOAT}" for lane in range(self.lanes))
        kept = self.op(f"icmp slt {self.whole} <{own}>, {self._whole(self.index(count * FLOAT, (self._part, -1)))}")
        self.do(f"call void {name}({self.vector} {value}, ptr {address}, i32 {FLOAT}, {self.mask} {kept})")

    def copy(self, kind: str, source: str, target: str) -> None:
        """Copy a single value of LLVM type `kind`."""
        self.do(f"store {kind} {self.op(f'load {kind}, ptr {source}')}, ptr {target}")

    def spread(self, address: str) -> str:
        """Load one float into every lane."""
        scalar = self.op(f"load float, ptr {address}, align {FLOAT}")
        one = self.op(f"insertelement {self.vector} poison, float {scalar}, i32 0")
        same = f"{self.whole} zeroinitializer"
        return self.op(f"shufflevector {self.vector} {one}, {self.vector} poison, {same}")

    def ones(self) -> str:
        """Return the address of a unit of ones."""
        values = ", ".join([f"float {real(1.0)}"] * LANES)
        self.module.declared.add(f"@ones = private constant [{LANES} x float] [{values}], align {UNIT}")
        return "@ones"

    def store_total(self, value: str, address: str) -> None:
        """Store the sum over all lanes, added in order, as a float."""
        name = f"@llvm.vector.reduce.fadd.v{self.lanes}f32"
        self.module.declared.add(f"declare float {name}(float, {self.vector})")
        total = self.op(f"call float {name}(float {real(-0.0)}, {self.vector} {value})")
        self.do(f"store float {total}, ptr {address}, align {FLOAT}")

    def load_seats(self, address: str) -> str:
        small = self.op(f"load <{LANES} x i8>, ptr {address}, align {LANES}")
        return self.op(f"zext <{LANES} x i8> {small} to {self.whole}")

    def store_seats(self, value: str, address: str) -> None:
        small = self.op(f"trunc {self.whole} {value} to <{LANES} x i8>")
        self.do(f"store <{LANES} x i8> {small}, ptr {address}, align {LANES}")

    def load_whole(self, address: str) -> str:
        return self.op(f"load {self.whole}, ptr {address}, align {UNIT}")

    def _two(self, name: str, a: str, b: str) -> str:
        return self.op(f"{name} {self.vector} {a}, {b}")

    add = partialmethod(_two, "fadd")
    sub = partialmethod(_two, "fsub")
    mul = partialmethod(_two, "fmul")
    div = partialmethod(_two, "fdiv")

    def fma(self, a: str, b: str, c: str) -> str:
        """Return a * b + c, rounded once."""
        v, name = self.vector, f"@llvm.fma.v{self.lanes}f32"
        self.module.declared.add(f"declare {v} {name}({v}, {v}, {v})")
        return self.op(f"call {v} {name}({v} {a}, {v} {b}, {v} {c})")

    def sqrt(self, a: str) -> str:
        """Return the square root, correctly rounded on every machine."""
        name = f"llvm.sqrt.v{self.lanes}f32"
        self.module.declared.add(f"declare {self.vector} @{name}({self.vector})")
        return self.op(f"call {self.vector} @{name}({self.vector} {a})")

    def compare(self, how: str, a: str, b: str) -> str:
        return self.op(f"fcmp {how} {self.vector} {a}, {b}")

    def equal(self, a: str, b: Number) -> str:
        """Return the mask of lanes where integers equal `b`."""
        return self.op(f"icmp eq {self.whole} {a}, {self._whole(b)}")

    def _whole(self, number: Number) -> str:
        """Return an integer in every lane."""
        if isinstance(number, int):
            return self.whole_constant(number)
        one = self.op(f"insertelement {self.whole} poison, i32 {self.op(f'trunc i64 {number} to i32')}, i32 0")
        return self.op(f"shufflevector {self.whole} {one}, {self.whole} poison, {self.whole} zeroinitializer")

    def more(self, a: str, b: Number) -> str:
        """Return the mask of lanes where integers exceed `b`."""
        return self.op(f"icmp sgt {self.whole} {a}, {self._whole(b)}")

    def most(self, a: str) -> str:
        """Return the largest integer of all lanes."""
        name = f"@llvm.vector.reduce.smax.v{self.lanes}i32"
        self.module.declared.add(f"declare i32 {name}({self.whole})")
        return self.op(f"sext i32 {self.op(f'call i32 {name}({self.whole} {a})')} to i64")

    def whole_op(self, name: str, a: str, b: int) -> str:
        """Apply add, sub, shl or ashr to the integers in all lanes and a constant."""
        return self.op(f"{name} {self.whole} {a}, {self.whole_constant(b)}")

    def bits(self, a: str) -> str:
        """Return the bits of floats as integers."""
        return self.op(f"bitcast {self.vector} {a} to {self.whole}")

    def looks_like(self, a: str) -> str:
        """Return the floats with these bits."""
        return self.op(f"bitcast {self.whole} {a} to {self.vector}")

    def either(self, a: str, b: str) -> str:
        return self.op(f"or {self.mask} {a}, {b}")

    def select(self, mask: str, a: str, b: str) -> str:
        return self.op(f"select {self.mask} {mask}, {self.vector} {a}, {self.vector} {b}")

    def select_whole(self, mask: str, a: str, b: str) -> str:
        return self.op(f"select {self.mask} {mask}, {self.whole} {a}, {self.whole} {b}")

    def where_positive(self, decides: str, value: str) -> str:
        """Return the value, or zero where `decides` <= 0. A NaN in `decides` keeps the value, as in torch."""
        return self.select(self.compare("ugt", decides, ZERO), value, ZERO)

    def transposed(self, rows: Sequence[str]) -> list[str]:
        """Return the transpose of a 16 x 16 block, by log2(16) rounds of exchanges."""
        found, w, h = list(rows), LANES, 1
        while h < w:
            for i in (i for i in range(w) if not i & h):
                a, b = found[i], found[i + h]
                low = [w + j - h if j & h else j for j in range(w)]
                high = [w + j if j & h else j + h for j in range(w)]
                found[i], found[i + h] = self._shuffled(a, b, low), self._shuffled(a, b, high)
            h *= 2
        return found

    def _shuffled(self, a: str, b: str, order: Sequence[int]) -> str:
        mask = ", ".join(f"i32 {j}" for j in order)
        return self.op(f"shufflevector {self.vector} {a}, {self.vector} {b}, <{len(order)} x i32> <{mask}>")

    # Loops

    def _begin(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self._block = label

    def loop(self, count: Number, body: Callable[..., Any], carried: Sequence[str] = ()) -> list[str]:
        """Emit a loop of body(i, *carried) -> carried for i = 0, 1, .. below count, run at least once."""
        if count == 1:
            out = body(0, *carried)
            return list(out) if carried else []
        before, tag = self._block, self._new("L")
        self.do(f"br label {tag}")
        self._begin(tag[1:])
        i, names = self._new("i"), [self._new("c") for _ in carried]
        place = len(self.lines)  # phis are inserted when the end of the loop is known
        out = body(i, *names)
        after = self.op(f"add nuw nsw i64 {i}, 1")
        phis = [f"  {i} = phi i64 [ 0, %{before} ], [ {after}, %{self._block} ]"]
        for name, first, last in zip(names, carried, out if carried else (), strict=True):
            phis.append(f"  {name} = phi {self.vector} [ {first}, %{before} ], [ {last}, %{self._block} ]")
        self.lines[place:place] = phis
        self.do(f"br i1 {self.op(f'icmp slt i64 {after}, {count}')}, label {tag}, label {tag}E")
        self._begin(f"{tag[1:]}E")
        return list(out) if carried else []

    def when(self, number: Number, body: Callable[[], object]) -> None:
        """Emit body(), executed if the number is not zero."""
        tag = self._new("W")
        self.do(f"br i1 {self.op(f'icmp ne i64 {number}, 0')}, label {tag}, label {tag}E")
        self._begin(tag[1:])
        body()
        self.do(f"br label {tag}E")
        self._begin(f"{tag[1:]}E")

    def parts(self, lanes: int, body: Callable[[Number], object]) -> None:
        """Emit body(part) for each part of `lanes` lanes, in which loads and stores are of this part of units."""

        def part(i: Number) -> None:
            self._use(lanes, self.index((i, lanes * FLOAT)))
            body(i)
            self._use(LANES, 0)

        self.loop(LANES // lanes, part)

    def blocks(self, total: int, most: int, body: Callable[[Number, int], object]) -> None:
        """Emit body(first, size) for nearly equal blocks of at most `most`; sizes are known at code generation."""
        for start, count, size in even_blocks(total, most):
            self.loop(count, lambda i, start=start, size=size: body(self.index((i, size), start), size))
