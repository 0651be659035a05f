"""Uniform draws with the same bits on every machine: torch's own rounding depends on the instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class UniformDraws(TorchDispatchMode):
    """Context in which float32 `uniform_` on the CPU rounds low + u (high - low) once, as torch with AVX2 does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.ops.aten.uniform_.default or args[0].dtype != torch.float32 or not args[0].is_cpu:
            return func(*args, **kwargs)
        x, low, high = (*args, 0.0, 1.0)[:3] if len(args) < 3 else args
        func(x, 0.0, 1.0, **kwargs)  # 24 bits, which are exact
        low, high = np.float32(low), np.float32(high)
        return x.copy_(x.double() * float(high - low) + float(low))
