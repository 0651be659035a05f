"""The environment of a run: the machine and the software that its bits depend on."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrecall.backend.device import Device
from fedrecall.version import __version__

# Keys that decide bits.
MATTERS = ("python", "torch", "numpy", "platform", "cpu", "cpu_capability")
MATTERS_ON_A_DEVICE = ("device_name", "driver", "device_libraries")


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the keys that decide bits and differ between two environments."""
    same_device = before.get("device", "cpu") == now.get("device", "cpu")  # another device implies the rest
    keys = (*MATTERS, *(MATTERS_ON_A_DEVICE if same_device else ()))
    return [key for key in keys if before.get(key) != now.get(key)]


def environment(device: Device) -> dict[str, Any]:
    """Return the facts about the machine and its software that the bits of a run depend on."""
    return {
        "fedrecall": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "llvmlite": version("llvmlite"),  # compiles the kernels of `step: lanes`, in which every rounding is fixed
        "platform": f"{sys.platform} {platform.machine()}",
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": os.cpu_count(),
        **device.facts(),
    }


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
