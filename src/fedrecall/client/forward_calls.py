"""Records the ATen calls of a model's forward pass, to derive kernels and to detect changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedrecall.core.vector import FlatModel
from fedrecall.errors import InputError

Call = tuple[Any, tuple[Any, ...], Any]  # an ATen operation, its arguments, its result
PLAIN = (bool, int, float, str)
FIRST_LOOKS, LOOKS_EVERY = {2, 4, 8, 16, 32}, 64  # check before these rounds, then before each 64th


class CallRecorder(TorchDispatchMode):
    """Records the ATen calls made within. Unlike torch.fx, it needs no import that takes a second."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[Call] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.made.append((func, args, result))
        return result


def forward_calls(flat: FlatModel, x: Tensor, *, training: bool = True) -> tuple[list[Call], object]:
    """Return the calls and output of one forward pass; restore the model and torch's generator."""
    with restored_after(flat), torch.no_grad(), CallRecorder() as calls:
        output = flat.module.train(training)(x)
    return calls.made, output


@contextmanager
def restored_after(flat: FlatModel) -> Iterator[None]:
    """Restore buffers, the training flag and torch's default generator at the end."""
    buffers, was_training = flat.buffers(), flat.module.training
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            flat.module.train(was_training)
            flat.load(flat.w, buffers)


def forward_signature(flat: FlatModel, x: Tensor) -> list[Any]:
    """Return the calls of a training and an eval forward pass, with parameter names, in comparable form."""
    module = flat.module
    names = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}

    def described(value: Any) -> Any:
        if isinstance(value, Tensor):
            return names.get(id(value), (value.dtype, tuple(value.shape)))
        if isinstance(value, list | tuple):
            return [described(item) for item in value]
        return value if isinstance(value, PLAIN) else repr(type(value))

    passes = [forward_calls(flat, x, training=training)[0] for training in (True, False)]
    return [[(str(operation), described(arguments)) for operation, arguments, _ in calls] for calls in passes]


def changing_part(flat: FlatModel, x: Tensor) -> str | None:
    """Return a description of what differs between forward passes, or None."""
    forward_calls(flat, x)  # an attribute that only the first pass sets is no change
    if (counted := counted_attribute(flat, x)) is not None:
        return f"its forward changes an attribute of the model ({counted!r})"
    return None if forward_signature(flat, x) == forward_signature(flat, x) else "its forward is another one each time"


def plain_attributes(module: nn.Module) -> dict[tuple[str, str], Any]:
    """Return the numbers and strings among the attributes of a model's modules."""
    return {
        (name, key): value
        for name, inner in module.named_modules()
        for key, value in vars(inner).items()
        if isinstance(value, PLAIN) and key != "training"
    }


def counted_attribute(flat: FlatModel, x: Tensor) -> str | None:
    """Return the name of an attribute that a forward pass changes, or None."""
    before = plain_attributes(flat.module)
    forward_calls(flat, x)
    after = plain_attributes(flat.module)
    changed = [".".join(filter(None, key)) for key in after if before.get(key) != after[key]]
    return changed[0] if changed else None


class ForwardPass:
    """A model's forward pass as recorded before round 1, on which traced steps and kernels rely."""

    def __init__(self, flat: FlatModel, x: Tensor) -> None:
        self._flat, self._x = flat, x
        self._signature = forward_signature(flat, x)

    def check(self, round: int) -> None:
        """Raise an `InputError` if the forward pass has changed; only some rounds are checked."""
        track_updates = round in FIRST_LOOKS or round % LOOKS_EVERY == 0
        if track_updates and forward_signature(self._flat, self._x) != self._signature:
            raise InputError(
                f"before round {round} the model's forward is not the one of round 1, on which steps in lanes and "
                "the engine 'vectorised' rely; choose local.step=exact and the engine 'serial' or 'processes'"
            )
