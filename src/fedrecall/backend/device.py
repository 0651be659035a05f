"""The device that clients train on: selection, placement, settings, readable errors.

Server tensors stay on the CPU: sums are in float64, which not every device has, and files hold CPU tensors. `put`
and `home` move tensors to the device and back; on the CPU both return their argument.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedrecall.backend.torch_state import fix_more
from fedrecall.core.vector import Tensors
from fedrecall.errors import InputError, short_repr

# A step on an accelerator costs some hundred calls of about ten microseconds. A CPU core does some 2e7 operations
# in that time, all cores a few 1e8; only a larger step is worth an accelerator.
WORTH_A_DEVICE = 1e9
WITHOUT_FLOAT64 = {"mps"}
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # cuBLAS needs it to be deterministic; read when CUDA starts


@dataclass(frozen=True)
class Device:
    """A device that clients train on, with its settings."""

    name: str = "cpu"  # torch's name, with the index: "cuda:1"
    deterministic: bool = True
    tf32: bool = False
    workers: int = 1  # that share the device

    @property
    def torch(self) -> torch.device:
        return torch.device(self.name)

    @property
    def kind(self) -> str:
        return self.torch.type

    @property
    def is_cpu(self) -> bool:
        return self.name == "cpu"

    @property
    def rounding(self) -> str:
        """The device's entry in a run's identity: empty for the CPU, whose bits are the reference."""
        words = [self.kind, "tf32" if self.tf32 else "", "" if self.deterministic else "nondeterministic"]
        return "" if self.is_cpu else " ".join(filter(None, words))

    def put(self, tensors: Tensors) -> Tensors:
        return tensors if self.is_cpu else {name: tensor.to(self.torch) for name, tensor in tensors.items()}

    def home(self, tensors: Tensors) -> Tensors:
        return tensors if self.is_cpu else {name: tensor.cpu() for name, tensor in tensors.items()}

    def memory(self) -> tuple[int, int] | None:
        """Return the free and total bytes; None if the device does not report them."""
        with suppress(RuntimeError, AttributeError, AssertionError):  # unsupported, or unavailable after a failure
            if self.kind == "mps":
                total = torch.mps.recommended_max_memory()
                return total - torch.mps.driver_allocated_memory(), total
            free, total = torch.get_device_module(self.torch).mem_get_info(self.torch)
            return free, total
        return None

    def has_room(self, size: int) -> bool:
        """Whether each worker may cache this many bytes here; most of the memory is left for training."""
        memory = self.memory()
        return memory is not None and size * self.workers <= memory[0] / 4

    def fix(self) -> None:
        """Apply the settings that decide bits, until torch's state is restored."""
        if not self.is_cpu:
            fix_more(self._settings)

    @contextmanager
    def _settings(self) -> Iterator[None]:
        module = torch.get_device_module(self.torch)
        with ExitStack() as undo:
            if self.kind in ("cuda", "xpu"):
                undo.enter_context(module.device(self.torch))
            undo.enter_context(torch.random.fork_rng([self.torch], device_type=self.kind))
            module.manual_seed(0)  # for draws outside of any stream
            undo.enter_context(torch.autocast(self.kind, enabled=False))
            undo.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
            torch.set_deterministic_debug_mode("error" if self.deterministic else "default")
            if self.deterministic:
                undo.enter_context(sdpa_kernel(SDPBackend.MATH))  # other kernels sum in any order
            if self.kind == "cuda":
                set_cuda(self, undo)
            yield

    def facts(self) -> dict[str, Any]:
        """Return the facts that decide bits, for `environment.json`."""
        if self.is_cpu:
            return {"device": "cpu"}
        module, facts = torch.get_device_module(self.torch), {"device": self.rounding}
        if not module.is_available():  # it is on another machine, which reports it
            return facts
        if hasattr(module, "get_device_name"):
            facts["device_name"] = module.get_device_name(self.torch)
        if self.kind == "cuda":
            with suppress(OSError, IndexError):
                text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
                facts["driver"] = text.splitlines()[0]
            made_for = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
            cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
            facts["device_libraries"] = f"{made_for}, cuDNN {cudnn}"
        elif self.kind == "xpu":
            facts["driver"] = str(torch.xpu.get_device_properties(self.torch).driver_version)
        elif self.kind == "mps":
            facts["driver"] = platform.mac_ver()[0]
        return facts

    @contextmanager
    def explained(self, batch_size: int) -> Iterator[None]:
        """Convert errors of the device into an `InputError` that names the setting to change."""
        try:
            yield
        except RuntimeError as error:
            sentence = None if self.is_cpu else self._sentence(error, " ".join(str(error).split()), batch_size)
            if sentence is None:
                raise
            raise InputError(sentence) from None

    def _sentence(self, error: RuntimeError, text: str, batch_size: int) -> str | None:
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in text:
            return self._too_little_memory(text, batch_size)
        if without := re.match(r"(.+?) does not have a deterministic implementation", text):
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
        asked, memory = re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", text), self.memory()
        parts = [f"{asked[1]} more were asked for"] if asked else []
        parts += ["{:.1f} GiB of {:.1f} GiB are free".format(*(size / 2**30 for size in memory))] if memory else []
        parts += [f"{self.workers} workers share it"] if self.workers > 1 else []
        ways = [f"local.batch_size below {batch_size}"] if batch_size > 1 else []
        ways += [f"execution.workers_per_device below {self.workers}"] if self.workers > 1 else []
        found = f" ({', '.join(parts)})" if parts else ""
        return f"{self.name} has too little memory{found}; set {', '.join([*ways, 'or execution.device=cpu'])}"


CPU = Device()


def set_cuda(device: Device, undo: ExitStack) -> None:
    """Set what cuDNN and matrix products do. TF32, which torch enables in cuDNN, rounds to 10 bits of mantissa."""
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    newer = hasattr(matmul, "fp32_precision")  # a second precision switch, which torch 2.6 lacks
    if newer:
        undo.callback(setattr, matmul, "fp32_precision", matmul.fp32_precision)
    with suppress(RuntimeError):  # the older switch cannot be read once the newer one was set
        undo.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    matmul.allow_tf32 = device.tf32  # sets both
    settings: list[tuple[Any, str, Any]]
    settings = [(cudnn, "benchmark", False), (cudnn, "deterministic", device.deterministic)]
    if newer:
        value = "tf32" if device.tf32 else "ieee"
        settings += [(cudnn.conv, "fp32_precision", value), (cudnn.rnn, "fp32_precision", value)]
    else:
        settings.append((cudnn, "allow_tf32", device.tf32))
    for owner, name, value in settings:
        undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)
    if device.deterministic and WORKSPACE not in os.environ:
        os.environ[WORKSPACE] = ":4096:8"
        undo.callback(os.environ.pop, WORKSPACE, None)


def to_device(tensor: Tensor, device: Device) -> Tensor:
    """Return a batch on a device, copied asynchronously where the device supports it."""
    if device.kind in ("cuda", "xpu"):
        return tensor.pin_memory().to(device.torch, non_blocking=True)
    return tensor.to(device.torch)


def accelerators() -> list[str]:
    """Return the names of this machine's accelerators, all of one kind."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind is None:
        return []
    return [f"{kind.type}:{number}" for number in range(torch.get_device_module(kind).device_count())]


def parse_device(asked: str) -> torch.device:
    try:
        return torch.device(asked)
    except RuntimeError:
        expected = "auto, cpu, cuda, mps or xpu was expected, or one of several by its number, as cuda:1"
        raise InputError(f"execution.device is {short_repr(asked)}; {expected}") from None


def find_devices(asked: str) -> list[str]:
    """Return the devices that a name stands for, with their indices; raise an `InputError` if there is none."""
    device = parse_device(asked)
    if device.type == "cpu":
        return ["cpu"]
    here = accelerators()
    wanted = device.type if device.index is None else f"{device.type}:{device.index}"
    found = [name for name in here if wanted in (name, name.partition(":")[0])]
    if not found:
        raise InputError(
            f"execution.device is {asked!r}, but PyTorch {torch.__version__} finds here: "
            f"{', '.join(['cpu', *here])}; say one of these, or auto"
        )
    return found


def choose_devices(asked: str, step_operations: float, dtype: torch.dtype) -> list[str]:
    """Return the devices for a run; `auto` decides by the operations of a local step."""
    auto = asked == "auto"
    if auto and step_operations < WORTH_A_DEVICE:
        return ["cpu"]
    named = (accelerators() or ["cpu"]) if auto else find_devices(asked)
    if dtype != torch.float64 or torch.device(named[0]).type not in WITHOUT_FLOAT64:
        return named
    if auto:
        return ["cpu"]
    raise InputError(
        f"the model is float64, which {asked} does not have; convert it by model.float(), or say execution.device=cpu"
    )


def device_elsewhere(asked: str, resources: Mapping[str, float]) -> str:
    """Return the device of a worker on another machine, which sees only its resources; `auto` prefers a GPU."""
    if asked == "auto":
        return "cuda:0" if resources.get("GPU") else "cpu"
    kind = parse_device(asked).type
    return kind if kind == "cpu" else f"{kind}:0"


def check_device(device: Device, precision: str, module: nn.Module) -> None:
    """Raise an `InputError` for bfloat16 on a GPU without support for it, and for dropout within a recurrent
    layer, which cuDNN draws from a state of its own that no seed resets."""
    if device.kind != "cuda":
        return
    if any(isinstance(inner, nn.RNNBase) and inner.dropout for inner in module.modules()):
        raise InputError(
            f"a recurrent layer of the model has dropout, which {device.name} draws from a generator that the "
            "seed of a run does not decide; a layer with dropout=0 and an nn.Dropout after it were expected"
        )
    if precision == "bfloat16" and device.name in accelerators() and not torch.cuda.is_bf16_supported():
        raise InputError(f"local.precision is bfloat16, which {device.name} does not have; float16 was expected")
