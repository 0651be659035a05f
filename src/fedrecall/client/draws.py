"""What a model draws on a device comes from the CPU's generator, so that it is the same on every device.

It costs a call of Python for each operation, and each draw is made on the CPU and sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fedrecall.device import Device
from fedrecall.errors import InputError
from fedrecall.rng import default_generator

aten = torch.ops.aten
# Kernels that draw inside, if at all: there is no way to give them the numbers.
FUSED = ("_scaled_dot_product", "_flash_attention", "_efficient_attention", "_cudnn_rnn", "miopen_rnn")


def randomness(device: Device, *of: Any) -> AbstractContextManager[None]:
    """Inside, whatever a model draws is from the stream of this seed, purpose, round and client."""
    return default_generator(*of) if device.is_cpu else on_a_device(*of)


@contextmanager
def on_a_device(*of: Any) -> Iterator[None]:
    with default_generator(*of), CpuDraws():
        yield


def draws(device: Device) -> AbstractContextManager[Any]:
    """Inside, whatever a model draws is from the CPU's generator."""
    return nullcontext() if device.is_cpu else CpuDraws()


def is_draw(operation: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(operation, "tags", ())


class CpuDraws(TorchDispatchMode):
    """Makes random numbers for a device's tensors on the CPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is aten.native_dropout_backward.default and args[1].is_floating_point():
            return args[0] * args[1]  # of a mask that `dropped` made
        if not is_draw(func) or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        device = device_of(args, kwargs)
        if device.type == "cpu":
            return func(*args, **kwargs)
        if func is aten.native_dropout.default:
            return dropped(*args)
        if func._schema.name.partition("::")[2].startswith(FUSED):
            refuse_own_draws(func, args, kwargs)
            return func(*args, **kwargs)
        return drawn_here(func, args, kwargs, device)


def device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Where the result of a call is wanted."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    given = (leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
    return next(given, torch.device("cpu"))


def drawn_here(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> Any:
    """The call with the CPU's generator; what it writes into, and what it gives back, is on the device."""
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    ours, named = tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, (args, kwargs))
    result = func(*ours, **named)
    written = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            there, here = (kwargs, named) if argument.name in kwargs else (args, ours)
            key: Any = argument.name if argument.name in kwargs else place
            written.append(there[key].copy_(here[key]))
    if len(written) == 1 and all(returned.alias_info is not None for returned in func._schema.returns):
        return written[0]  # in place, or with `out`
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, result)


def dropped(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Dropout as the CPU computes it, where a mask is not 1 but 1 / (1 - p): other kernels round otherwise."""
    if train is False:
        return x.clone(), torch.ones_like(x)
    kept = torch.empty_like(x, device="cpu").bernoulli_(1 - p)
    mask = (kept.div_(1 - p) if p < 1 else kept).to(x.device)
    return x * mask, mask


def refuse_own_draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args)) | kwargs
    if given.get("dropout_p") or given.get("dropout"):
        raise InputError(
            f"{func._schema.name} draws its dropout from the device's own generator, which the seed of a run does "
            "not decide; execution.deterministic=true takes another way for attention, and a recurrent layer must "
            "have no dropout of its own"
        )
