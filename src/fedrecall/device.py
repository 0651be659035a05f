"""Where the tensors of a run's clients live, what is set there, and what is said when it cannot be done there.

The server's side is on the CPU, whatever the device: sums are in float64, which not every device has, and files
hold CPU tensors. `put` and `home` are the ways there and back; on the CPU both give back what they are given.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedrecall.errors import InputError
from fedrecall.torch_state import Setting, also_fix, fp32_precision
from fedrecall.vector import Tensors

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # without which cuBLAS is not deterministic; read when CUDA begins
NO_DETERMINISTIC = re.compile(r"(.+?) does not have a deterministic implementation")
ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ \w+)")


@dataclass(frozen=True)
class Device:
    """One device, as clients train on it."""

    name: str = "cpu"  # as torch has it, with its number: "cuda:1"
    deterministic: bool = True
    tf32: bool = False
    workers: int = 1  # who share it

    @property
    def torch(self) -> torch.device:
        return torch.device(self.name)

    @property
    def kind(self) -> str:
        return self.torch.type

    @property
    def is_cpu(self) -> bool:
        return self.name == "cpu"

    def fields(self) -> dict[str, Any]:
        """As plain values, which travel to a process that has imported nothing yet."""
        return asdict(self)

    @property
    def rounding(self) -> str:
        """The word for it in a run's identity: none for the CPU, whose bits are the reference."""
        if self.is_cpu:
            return ""
        ways = (("tf32", self.tf32), ("nondeterministic", not self.deterministic))
        return " ".join([self.kind, *(word for word, holds in ways if holds)])

    def put(self, tensors: Tensors) -> Tensors:
        """The tensors on this device."""
        return tensors if self.is_cpu else {name: tensor.to(self.torch) for name, tensor in tensors.items()}

    def home(self, tensors: Tensors) -> Tensors:
        """The tensors on the CPU again."""
        return tensors if self.is_cpu else {name: tensor.cpu() for name, tensor in tensors.items()}

    def memory(self) -> tuple[int, int] | None:
        """Bytes that are free, and all; None where the device does not tell."""
        try:
            if self.kind == "mps":
                total = torch.mps.recommended_max_memory()
                return total - torch.mps.driver_allocated_memory(), total
            free, total = torch.get_device_module(self.torch).mem_get_info(self.torch)
        except (RuntimeError, AttributeError, AssertionError):  # it cannot tell, or not after a failure
            return None
        return free, total

    def has_room(self, size: int) -> bool:
        """May each of its workers keep so many bytes here? Most of the memory is for training."""
        memory = self.memory()
        return memory is not None and size * self.workers <= memory[0] / 4

    def fix(self) -> None:
        """Set what its bits depend on, until torch's state is given back."""
        if not self.is_cpu:
            also_fix(self._settings())

    def _settings(self) -> list[Setting]:
        kind, number = self.kind, self.torch.index or 0
        settings: list[Setting] = [
            (lambda: torch.is_autocast_enabled(kind), lambda on: torch.set_autocast_enabled(kind, on), False)
        ]
        if self.deterministic:
            settings += [
                (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 2),
                # Attention by plain products: its own kernels add in any order, and draw numbers themselves.
                (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, False),
                (
                    torch.backends.cuda.mem_efficient_sdp_enabled,
                    torch.backends.cuda.enable_mem_efficient_sdp,
                    False,
                ),
                (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp, False),
            ]
        if kind == "cuda":
            settings += [*cuda_settings(self), (torch.cuda.current_device, torch.cuda.set_device, number)]
        if kind == "xpu":
            settings.append((torch.xpu.current_device, torch.xpu.set_device, number))
        return settings

    def facts(self) -> dict[str, Any]:
        """What its bits depend on, for `environment.json`."""
        if self.is_cpu:
            return {"device": "cpu"}
        module = torch.get_device_module(self.torch)
        if not module.is_available():  # it is on another machine, which says what it is
            return {"device": self.rounding}
        name = module.get_device_name(self.torch) if hasattr(module, "get_device_name") else None
        found = {"device_name": name, "driver": driver(self), "device_libraries": libraries(self.kind)}
        return {"device": self.rounding, **{key: value for key, value in found.items() if value is not None}}

    @contextmanager
    def explained(self, batch_size: int) -> Iterator[None]:
        """What fails because of the device, as a sentence that says what to set."""
        try:
            yield
        except RuntimeError as error:
            sentence = None if self.is_cpu else self._sentence(error, batch_size)
            if sentence is None:
                raise
            raise InputError(sentence) from None

    def _sentence(self, error: RuntimeError, batch_size: int) -> str | None:
        text = " ".join(str(error).split())
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in text:
            return self._too_little_memory(text, batch_size)
        if without := NO_DETERMINISTIC.match(text):
            return (
                f"{without[1]} has no deterministic version on {self.kind}; execution.deterministic=false allows "
                "it, and two runs may differ then"
            )
        if WORKSPACE in text:
            return (
                f"cuBLAS began before the run, without {WORKSPACE}, and is not deterministic so: set "
                f"{WORKSPACE}=:4096:8 before Python starts, or execution.deterministic=false"
            )
        if type(error).__name__ == "AcceleratorError" or "CUDA error" in text:
            return (
                f"{self.name} failed, perhaps some steps before this was seen: {text.partition('. ')[0][:200]}; "
                "execution.device=cpu shows where, if it is the model or the data"
            )
        return None

    def _too_little_memory(self, text: str, batch_size: int) -> str:
        asked, memory = ASKED.search(text), self.memory()
        parts = [f"{asked[1]} more were asked for"] if asked else []
        parts += [f"{in_words(memory[0])} of {in_words(memory[1])} are free"] if memory else []
        parts += [f"{self.workers} workers share it"] if self.workers > 1 else []
        ways = [f"local.batch_size below {batch_size}"] if batch_size > 1 else []
        ways += [f"execution.workers_per_device below {self.workers}"] if self.workers > 1 else []
        found = f" ({', '.join(parts)})" if parts else ""
        return f"{self.name} has too little memory{found}; set {', '.join([*ways, 'or execution.device=cpu'])}"


CPU = Device()


def cuda_settings(device: Device) -> list[Setting]:
    """Of cuDNN and of products. TF32 rounds to 10 bits of mantissa, and torch has it on for convolutions."""
    cudnn = torch.backends.cudnn
    settings: list[Setting] = [
        (lambda: cudnn.benchmark, lambda on: setattr(cudnn, "benchmark", on), False),
        (lambda: cudnn.deterministic, lambda on: setattr(cudnn, "deterministic", on), device.deterministic),
    ]
    if device.deterministic:
        settings.append((lambda: os.environ.get(WORKSPACE), write_workspace, os.environ.get(WORKSPACE, ":4096:8")))
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        value = "tf32" if device.tf32 else "ieee"
        settings += [(*fp32_precision("cuda", part)[:2], value) for part in ("matmul", "conv", "rnn")]
    else:
        for backend in (torch.backends.cuda.matmul, cudnn):
            settings.append(
                (
                    lambda at=backend: at.allow_tf32,  # type: ignore[misc]
                    lambda on, at=backend: setattr(at, "allow_tf32", on),  # type: ignore[misc]
                    device.tf32,
                )
            )
    return settings


def write_workspace(value: str | None) -> None:
    if value is None:
        os.environ.pop(WORKSPACE, None)
    else:
        os.environ[WORKSPACE] = value


def driver(device: Device) -> str | None:
    """The version of the device's driver, where it can be told."""
    if device.kind == "cuda":
        try:
            return Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
        except (OSError, IndexError):
            return None
    if device.kind == "xpu":
        return str(torch.xpu.get_device_properties(device.torch).driver_version)
    return platform.mac_ver()[0] if device.kind == "mps" else None


def libraries(kind: str) -> str | None:
    """The versions of what its kernels come from."""
    if kind != "cuda":
        return None
    made_for = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return f"{made_for}, cuDNN {torch.backends.cudnn.version()}"  # type: ignore[no-untyped-call]


def in_words(size: int) -> str:
    """
    >>> in_words(3 * 2**29)
    '1.5 GiB'
    """
    return f"{size / 2**30:.1f} GiB"


def received(tensor: Tensor, device: Device) -> Tensor:
    """A batch on its way to a device, for which the CPU need not wait where the device can fetch it by itself."""
    if device.kind in ("cuda", "xpu"):
        return tensor.pin_memory().to(device.torch, non_blocking=True)
    return tensor.to(device.torch)
