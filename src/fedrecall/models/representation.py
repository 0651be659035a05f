"""Capture a sample's representation inside any model by a hook on one of its modules."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor, nn

from fedrecall.core.vector import FlatModel, TensorSlot
from fedrecall.errors import InputError, nearest


def last_linear(module: nn.Module) -> nn.Linear | None:
    """Return a model's head, the last nn.Linear in it; None if it has none."""
    linear = [inner for inner in module.modules() if isinstance(inner, nn.Linear)]
    return linear[-1] if linear else None


def slots_of(layers: Sequence[nn.Module], flat: FlatModel) -> list[TensorSlot]:
    """Return the places of these layers' parameters in the model's vector."""
    wanted = {id(parameter) for layer in layers for parameter in layer.parameters(recurse=False)}
    return [slot for slot in flat.parameter_slots if id(flat.parameters[slot.name]) in wanted]


def home_of(algorithm: str, needs: Collection[str], flat: FlatModel) -> list[TensorSlot]:
    """Return the places of the layers that the algorithm leaves with the clients."""
    if "head" in needs:
        head = last_linear(flat.module)
        layers: list[nn.Module] = [] if head is None else [head]
    else:
        layers = [inner for inner in flat.module.modules() if isinstance(inner, nn.modules.batchnorm._BatchNorm)]
    slots = slots_of(layers, flat)
    if not slots and "head" in needs:
        raise InputError(f"algorithm is {algorithm}, but the model has no nn.Linear, the head that stays with a client")
    if len(slots) == len(flat.parameter_slots):
        raise InputError(f"algorithm is {algorithm}, but the model is nothing but what stays with a client")
    return slots


class Representation:
    """Captures the representation of each batch that passes through a model.

    It is the flattened output of the named module or, without a name, the flattened input of the last nn.Linear.
    """

    def __init__(self, module: nn.Module, name: str | None) -> None:
        self._value: Tensor | None = None
        self.name = name
        if name is None:
            head = last_linear(module)
            if head is None:
                raise InputError(
                    "the model has no nn.Linear whose input could be the representation; name the module whose "
                    "output is: algorithm.representation"
                )
            self.remove = head.register_forward_pre_hook(self._catch_input).remove
        else:
            modules = dict(module.named_modules())
            if name not in modules:
                known = [key for key in modules if key]
                raise InputError(
                    f"algorithm.representation is {name!r}, but the model has no such module; {nearest(name, known)}"
                )
            self.remove = modules[name].register_forward_hook(self._catch_output).remove

    def _catch_input(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._value = inputs[0]

    def _catch_output(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._value = output

    def take(self) -> Tensor:
        """Return the representation of the last batch, [samples, features], and release it."""
        value, self._value = self._value, None  # a kept reference would hold the graph of the step
        if not isinstance(value, Tensor):
            what = f"module {self.name!r} gave" if self.name else "the last nn.Linear was given"
            found = "nothing" if value is None else f"a {type(value).__name__}"
            raise InputError(f"algorithm.representation: {what} {found}; a tensor was expected")
        return value.flatten(1)
