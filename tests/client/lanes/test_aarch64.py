"""Kernels compile for processors with NEON, to vector instructions and no calls of a library's `fmaf`."""

from __future__ import annotations

import re
import struct

import llvmlite.binding as llvm
import pytest
from lane_nets import batch, net

from fedrecall.client.lanes.jit import Cpu, parsed, target_machine
from fedrecall.client.lanes.kernels.context import NEON
from fedrecall.client.lanes.kernels.steps import ClientsProgram, SamplesProgram
from fedrecall.client.lanes.model_reader import chain_of
from fedrecall.core.vector import FlatModel

AARCH64 = 183  # of an ELF header's machines
SYMBOL = struct.Struct("<IBBHQQ")


@pytest.fixture(scope="module")
def target() -> llvm.Target:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple("aarch64-unknown-linux-gnu")


def symbols(data: bytes) -> dict[str, bool]:
    """The names in an object file, and whether it defines them."""
    sections = {part.name(): part.data() for part in llvm.ObjectFileRef.from_data(data).sections()}
    names, found = sections[b".strtab"], {}
    for name, _, _, section, _, _ in SYMBOL.iter_unpack(sections[b".symtab"]):
        found[names[name : names.index(b"\0", name)].decode()] = section != 0
    return found


@pytest.mark.parametrize(
    ("name", "clients"),
    [("convolutions with padding", True), ("lenet", False), ("lenet", True)],
)
def test_programs_compile_to_vectors_of_neon(target, name, clients) -> None:
    chain = chain_of(FlatModel(net(name)), batch(name, 2)[0])
    make = ClientsProgram if clients else SamplesProgram
    program = make(chain, 4, NEON, momentum=0.9, decay=0.01, pixels=False)
    machine = target_machine(target, Cpu("neoverse-n1", "", NEON))
    module = parsed(program.text, machine)
    code = machine.emit_object(module)
    assert code[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", code, 18) == (AARCH64,)
    found, kernels = symbols(code), ["forward", "backward", "step", "decay", "descend"]
    assert all(found[kernel] for kernel in (["run"] if clients else kernels))
    assert {name for name, defined in found.items() if name and not defined} <= {"memset"}
    assembly = machine.emit_assembly(module)
    assert len(re.findall(r"\tfmla\tv\d+\.4s", assembly)) > 100
    assert not re.search(r"\tfmadd\t", assembly)
