"""Which devices there are by the names of `execution.device`, and which of them a run gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedrecall.device import Device
from fedrecall.errors import InputError, short_repr

KINDS = ("cuda", "mps", "xpu")
# A step on an accelerator is some hundred calls of about ten microseconds, in which a core of a CPU does some 2e7
# operations; with as many cores as such a machine has, that is a few 1e8. A step should be more than that.
WORTH_A_DEVICE = 1e9
WITHOUT_FLOAT64 = {"mps"}


def find(asked: str) -> list[str]:
    """The devices that a name stands for, with their numbers; an `InputError` if there is none."""
    device = torch_device(asked)
    if device.type == "cpu":
        return ["cpu"]
    all_of_kind = of_kind(device.type)
    named = all_of_kind if device.index is None else [f"{device.type}:{device.index}"]
    if not named or not set(named) <= set(all_of_kind):
        raise InputError(
            f"execution.device is {asked!r}, but PyTorch {torch.__version__} finds here: {', '.join(there())}; "
            "say one of these, or auto"
        )
    return named


def torch_device(asked: str) -> torch.device:
    try:
        return torch.device(asked)
    except RuntimeError:
        expected = "auto, cpu, cuda, mps or xpu was expected, or one of several by its number, as cuda:1"
        raise InputError(f"execution.device is {short_repr(asked)}; {expected}") from None


def of_kind(kind: str) -> list[str]:
    """All devices of a kind that torch can use here."""
    module: Any = getattr(torch, kind, None)
    if not hasattr(module, "is_available") or not module.is_available():
        return []
    return [f"{kind}:{number}" for number in range(module.device_count())]


def there() -> list[str]:
    """All devices of this machine."""
    kinds = dict.fromkeys([*KINDS, *([accelerator()] if accelerator() else [])])
    return ["cpu", *(name for kind in kinds for name in of_kind(str(kind)))]


def accelerator() -> str | None:
    """The kind of this machine's accelerator, if it has one."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if found is None else found.type


def choose(asked: str, step_operations: float, dtype: torch.dtype) -> list[str]:
    """The devices for a run whose local steps have so many arithmetic operations. `auto` goes by these alone."""
    kind = accelerator() if asked == "auto" else None
    if asked == "auto":
        worth = kind is not None and step_operations >= WORTH_A_DEVICE
        asked = str(kind) if worth and not lacks(str(kind), dtype) else "cpu"
    named = find(asked)
    if lacks(torch.device(named[0]).type, dtype):
        raise InputError(
            f"the model is float64, which {asked} does not have; convert it by model.float(), or say "
            "execution.device=cpu"
        )
    return named


def choose_elsewhere(asked: str, resources: Mapping[str, float]) -> list[str]:
    """The device of a worker on another machine, which sees only what it was given there: `auto` goes by whether a
    GPU is among its resources."""
    if asked == "auto":
        return ["cuda:0" if resources.get("GPU") else "cpu"]
    device = torch_device(asked)
    return [f"{device.type}:0" if device.type != "cpu" else "cpu"]


def lacks(kind: str, dtype: torch.dtype) -> bool:
    return dtype == torch.float64 and kind in WITHOUT_FLOAT64


def refuse_precision(device: Device, precision: str) -> None:
    """An `InputError` for bfloat16 on a GPU that has no instructions for it."""
    here = device.name in of_kind(device.kind)  # else it is on another machine
    if precision == "bfloat16" and device.kind == "cuda" and here and not torch.cuda.is_bf16_supported():
        raise InputError(f"local.precision is bfloat16, which {device.name} does not have; float16 was expected")
