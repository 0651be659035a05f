"""Compiles IR to machine code, cached on disk."""

from __future__ import annotations

import ctypes
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import torch

from fedrecall.client.lanes.kernels.context import AVX2, AVX512, NEON, Machine
from fedrecall.client.lanes.kernels.ir import KINDS, Function
from fedrecall.client.lanes.object_cache import cached_object
from fedrecall.errors import InputError


@dataclass(frozen=True)
class Cpu:
    """The processor that code is compiled for."""

    name: str
    features: str
    machine: Machine


HASWELL = Cpu("haswell", "", AVX2)  # any x86 with AVX2 and FMA


@lru_cache
def host() -> Cpu:
    """Return this processor. FMA is required: without it, a product and sum would be rounded twice, not once."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features()
    arm = llvm.get_process_triple().startswith(("aarch64", "arm64"))  # always has FMA
    if not arm and not (features.get("avx2") and features.get("fma")):
        raise InputError(
            f"local.step is 'lanes', but this processor ({name}) has no AVX2 and FMA instructions, without which "
            "it would come to other numbers; choose local.step=exact"
        )
    if not (features.get("avx512f") and features.get("avx512vl")):
        return Cpu(name, features.flatten(), NEON if arm else AVX2)
    if torch.backends.cpu.get_cpu_capability() == "AVX2":  # set by ATEN_CPU_CAPABILITY
        return HASWELL
    return Cpu(name, features.flatten(), AVX512)


class Code:
    """Compiled functions of an IR text."""

    def __init__(self, text: str, cpu: Cpu) -> None:
        host()  # this processor runs the code, whatever `cpu` is
        triple = llvm.get_process_triple()
        versions = (llvmlite.__version__, llvm.llvm_version_info, triple, cpu.name, cpu.features)
        name = hashlib.sha256(repr((versions, text)).encode()).hexdigest()
        machine = target_machine(llvm.Target.from_triple(triple), cpu)
        data = cached_object(name, lambda: bytes(machine.emit_object(parsed(text, machine))))
        empty = llvm.parse_assembly("")
        empty.triple = triple
        self._engine = llvm.create_mcjit_compiler(empty, machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self._engine.finalize_object()

    def function(self, f: Function) -> Any:
        """Return a callable, valid while this object exists. It releases the GIL."""
        kinds = [ctypes.c_void_p if KINDS[name[0]] == "ptr" else ctypes.c_int64 for name in f.arguments]
        return ctypes.CFUNCTYPE(None, *kinds)(self._engine.get_function_address(f.name))


@lru_cache(maxsize=16)
def compiled(text: str, cpu: Cpu) -> Code:
    """Return the code of an IR text, compiled once per process and shared by all threads."""
    return Code(text, cpu)


def target_machine(target: Any, cpu: Cpu) -> Any:
    return target.create_target_machine(cpu=cpu.name, features=cpu.features, opt=3, reloc="pic", codemodel="jitdefault")


def parsed(text: str, machine: Any) -> Any:
    """Return the module of an IR text. Optimisation passes doubled the compile time and made it no faster."""
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    return module
