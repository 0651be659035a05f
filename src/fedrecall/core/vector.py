"""A module as flat vectors: parameters are views into `w`, gradients into `g`, float buffers into `b`.

An algorithm is then arithmetic on whole models (`g += mu * (y - x)`), one kernel each, and a model is sent as two
tensors. Every view starts on a 64-byte boundary, because the rounding of matrix kernels depends on alignment.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedrecall.errors import InputError

Tensors = dict[str, Tensor]

ALIGNMENT = 64  # bytes
HERE = torch.device("cpu")


@dataclass(frozen=True)
class Payload:
    """The communicated size of a model: its vectors without the padding between tensors."""

    w: tuple[int, int]  # the length of the vector, and the number of parameters in it
    b: tuple[int, int]  # the same for the float buffers

    def bytes(self, sent: Tensors, buffers: Tensors) -> int:
        """Return the bytes of these tensors; stacked ones have a row for each client.

        Vectors of the length of `w` or `b` count without padding, others in full.
        """
        real = dict([self.b, self.w])
        return sum(
            tensor.numel() // length * real.get(length, length) * tensor.itemsize
            for tensor in (*sent.values(), *buffers.values())
            if (length := tensor.shape[-1] if tensor.ndim else 1)
        )


@dataclass(frozen=True)
class TensorSlot:
    """The place of one tensor in its flat vector."""

    name: str
    offset: int
    shape: torch.Size

    def view(self, flat: Tensor) -> Tensor:
        """Return the tensor as a view; convolution weights are stored channels last, as kernels use them.

        For stacked vectors [.., length], return the stack of their tensors.
        """
        part = flat[..., self.offset : self.offset + math.prod(self.shape)]
        leading = flat.shape[:-1]
        if len(self.shape) == 4:
            out, channels, height, width = self.shape
            return part.view(*leading, out, height, width, channels).movedim(-1, -3)
        return part.view(*leading, *self.shape)


def lay_out(tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> tuple[list[TensorSlot], int]:
    """Return consecutive slots, each padded to the alignment, and the length of the vector."""
    step = ALIGNMENT // dtype.itemsize
    slots, end = [], 0
    for name, tensor in tensors:
        slots.append(TensorSlot(name, end, tensor.shape))
        end += math.ceil(tensor.numel() / step) * step
    return slots, end


class FlatModel:
    """A module whose parameters, gradients and float buffers are views into flat vectors on one device. The module
    is changed in place.

    >>> flat = FlatModel(nn.Linear(3, 2))
    >>> flat.w.shape, flat.b.shape                      # 6 weights and 2 biases, each padded to 16 floats
    (torch.Size([32]), torch.Size([0]))
    """

    def __init__(self, module: nn.Module, device: torch.device = HERE) -> None:
        if any(tensor.device != device for tensor in chain(module.parameters(), module.buffers())):
            module.to(device)
        parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not parameters:
            raise InputError("the model has no parameters to train")
        buffers = list(module.named_buffers())
        floats = [(name, b) for name, b in buffers if b.is_floating_point()]
        dtype = the_one_float_dtype([*module.named_parameters(), *floats])

        self.module = module
        self.parameters = dict(parameters)
        self.float_buffers = dict(floats)
        self.int_buffers = {name: b for name, b in buffers if not b.is_floating_point()}
        self.parameter_slots, length = lay_out(parameters, dtype)
        self.buffer_slots, buffer_length = lay_out(floats, dtype)
        self.w = torch.zeros(length, dtype=dtype, device=device)
        self.g = torch.zeros(length, dtype=dtype, device=device)
        self.b = torch.zeros(buffer_length, dtype=dtype, device=device)
        self._adopt()

    def _adopt(self) -> None:
        """Move values into the vectors and point the module's tensors there. The tensor objects stay, because tied
        weights, a GRU's list of weights and parametrisations refer to them."""
        for slot in self.parameter_slots:
            parameter = self.parameters[slot.name]
            view = slot.view(self.w)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = slot.view(self.g)
        for slot in self.buffer_slots:
            buffer = self.float_buffers[slot.name]
            view = slot.view(self.b)
            view.copy_(buffer)
            buffer.data = view

    @property
    def payload(self) -> Payload:
        parameters, buffers = self.parameters.values(), self.float_buffers.values()
        real = [sum(tensor.numel() for tensor in tensors) for tensors in (parameters, buffers)]
        return Payload((len(self.w), real[0]), (len(self.b), real[1]))

    @property
    def has_buffers(self) -> bool:
        return bool(self.float_buffers or self.int_buffers)

    def buffers(self) -> Tensors:
        """Return a copy of the buffers: floats as the flat `b`, integers (a batch counter) as the flat `i`."""
        integers = [buffer.reshape(-1).long() for buffer in self.int_buffers.values()]
        none = torch.zeros(0, dtype=torch.long, device=self.b.device)
        return {"b": self.b.clone(), "i": torch.cat(integers) if integers else none}

    def load(self, w: Tensor, buffers: Tensors) -> None:
        """Copy a vector and buffers into the model; its views stay valid."""
        self.w.copy_(w)
        self.b.copy_(buffers["b"])
        start = 0
        for buffer in self.int_buffers.values():
            part = buffers["i"][start : start + buffer.numel()]
            buffer.copy_(part.view(buffer.shape))
            start += buffer.numel()

    def check_views(self) -> None:
        """Raise an `InputError` if a tensor of the module is no longer a view, as its `forward` may replace it."""
        parameters, buffers = dict(self.module.named_parameters()), dict(self.module.named_buffers())
        for slot in self.parameter_slots:
            parameter = parameters.get(slot.name)
            if parameter is None or parameter.data_ptr() != slot.view(self.w).data_ptr():
                raise InputError(
                    f"the model replaced the storage of parameter {slot.name!r} while it trained; "
                    "change parameters in place instead (load_state_dict without assign=True, no .data = ...)"
                )
            if parameter.grad is None or parameter.grad.data_ptr() != slot.view(self.g).data_ptr():
                raise InputError(
                    f"the model dropped the gradient of parameter {slot.name!r} while it trained; "
                    "leave zero_grad() to fedrecall"
                )
        for slot in self.buffer_slots:
            if slot.name not in buffers or buffers[slot.name].data_ptr() != slot.view(self.b).data_ptr():
                raise InputError(
                    f"the model assigned a new tensor to buffer {slot.name!r} while it trained; "
                    "update it in place instead (copy_, mul_, add_)"
                )

    def state_dict(self) -> Tensors:
        """Return contiguous copies under the module's own names, for saving."""
        return {
            name: tensor.detach().clone(memory_format=torch.contiguous_format)
            for name, tensor in self.module.state_dict().items()
        }


def materialise(module: nn.Module, dry_batch: Callable[[torch.dtype], Tensor]) -> None:
    """Initialise lazy modules by one dry batch in the model's precision."""
    tensors = [*module.parameters(), *module.buffers()]
    if any(is_lazy(tensor) for tensor in tensors):
        dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)
        was_training = module.training
        with torch.no_grad():
            module.eval()(dry_batch(dtype))
        module.train(was_training)


def the_one_float_dtype(tensors: Iterable[tuple[str, Tensor]]) -> torch.dtype:
    """Return the dtype of all parameters and float buffers; raise an `InputError` if there are several."""
    first: dict[torch.dtype, str] = {}
    for name, tensor in tensors:
        if not tensor.is_floating_point():
            raise InputError(f"parameter {name!r} of the model has dtype {tensor.dtype}; a float dtype was expected")
        first.setdefault(tensor.dtype, name)
    if len(first) > 1:
        found = ", ".join(f"{name!r} is {dtype}" for dtype, name in first.items())
        raise InputError(f"the model mixes float dtypes ({found}); convert it to one, as in model.float()")
    return next(iter(first), torch.float32)


def tensors_digest(state: Tensors) -> str:
    """Return the SHA-256 of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
