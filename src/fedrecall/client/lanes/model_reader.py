"""Reads a chain of layers that have kernels off a model's forward pass, or raises `UnsupportedError`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedrecall.client.forward_calls import changing_part, forward_calls
from fedrecall.client.lanes.kernels.ir import LANES
from fedrecall.client.lanes.kernels.layers import Chain, Convolution, Layer, Linear, Pooling, Spatial
from fedrecall.core.vector import FlatModel

aten = torch.ops.aten

SAME = {aten.detach.default, aten.alias.default, aten.clone.default}  # values unchanged
RESHAPED = {aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default}
MOST_SEATS = 255  # a byte holds the index of a window's largest pixel
LAST_TWO = ([2, 3], [3, 2])
ENDS_RESCALING = {aten.div.Tensor, aten.mul.Tensor}  # the first calls whose results are features again


class UnsupportedError(Exception):
    """Raised if a model or a recipe needs something that has no kernel."""

    def __init__(self, what: object) -> None:
        super().__init__(f"there is no kernel for {what}")


def chain_of(flat: FlatModel, x: Tensor) -> Chain:
    """Return the model's layers, which must be the same in training and in eval mode."""
    if x.dtype != torch.float32 or flat.w.dtype != torch.float32 or not x.is_cpu:
        raise UnsupportedError("a precision other than float32, or a device other than the CPU")
    if x.ndim not in (2, 4) or math.prod(x.shape[1:]) < LANES:
        raise UnsupportedError(f"samples of shape {tuple(x.shape[1:])}")
    if flat.has_buffers:
        raise UnsupportedError("layers with buffers, such as batch norm")
    if (reason := changing_part(flat, x)) is not None:
        raise UnsupportedError(f"this model: {reason}")
    chain, evaluated = (read_chain(flat, x, training=training) for training in (True, False))
    if chain != evaluated:
        raise UnsupportedError("a forward that differs between training and evaluation")
    return chain


def read_chain(flat: FlatModel, x: Tensor, *, training: bool) -> Chain:
    calls, output = forward_calls(flat, x, training=training)
    reader = Reader(flat, x)
    for call, args, result in calls:
        reader.read(call, args, result)
    return reader.chain(output)


class Reader:
    """Builds the layers by following one value through the calls."""

    def __init__(self, flat: FlatModel, x: Tensor) -> None:
        self.flat, self.value, self.sample = flat, x, tuple(x.shape[1:])
        self.spatial: list[Spatial] = []
        self.linear: list[Linear] = []
        self.places = {id(flat.parameters[slot.name]): slot.offset for slot in flat.parameter_slots}
        self.turned: dict[int, Tensor] = {}  # parameters, by the ids of their transposed views
        self.used: list[int] = []
        self.rescaling = Rescaling()
        self._alive: list[Any] = []  # so that ids stay unique
        self._kinds: dict[Any, Callable[..., None]] = {
            aten.convolution.default: self._convolution,
            aten.max_pool2d_with_indices.default: self._max_pool,
            aten.avg_pool2d.default: self._mean_pool,
            aten._adaptive_avg_pool2d.default: self._adaptive_pool,
            aten.mean.dim: self._mean,
            aten.addmm.default: lambda bias, x, w: self._linear(x, w, bias),
            aten.mm.default: lambda x, w: self._linear(x, w, None),
            aten.relu.default: self._relu,
            aten.relu_.default: self._relu,
        }

    def read(self, call: Any, args: tuple[Any, ...], result: Any) -> None:
        self._alive.append((args, result))
        if call is aten.t.default and id(args[0]) in self.places:
            self.turned[id(result)] = args[0]
            return
        if call is aten.t.default and isinstance(args[0], nn.Parameter):
            raise UnsupportedError("a weight that is not trained")
        if call is aten.empty_like.default:
            raise UnsupportedError("dropout, or another operation that makes a tensor of its own")
        if self.rescaling.reads(call, args, result, self.value):
            if call in ENDS_RESCALING:
                self.value = result
            return
        at = 1 if call is aten.addmm.default else 0
        if not args or len(args) <= at or args[at] is not self.value:
            raise UnsupportedError(f"{call} beside the one way from the input to the output")
        if call in self._kinds:
            self._kinds[call](*args)
        elif call is aten.as_strided_.default and tuple(args[1]) == (*self.value.shape[:2], 1, 1):
            pass  # torch inserts it after a mean over all pixels
        elif call in RESHAPED:
            if tuple(result.shape) != (len(self.value), math.prod(self.value.shape[1:])):
                raise UnsupportedError(f"{call} to {tuple(result.shape[1:])}")
        elif call not in SAME:
            raise UnsupportedError(call)
        self.value = result[0] if isinstance(result, tuple) else result

    def chain(self, output: object) -> Chain:
        if self.rescaling.take() != (0.0, 0.0):
            raise UnsupportedError("features of one length that no linear layer follows")
        if any(layer.length for layer in self.linear[:-1]):  # rounding could decide a sign behind it
            raise UnsupportedError("features of one length before a layer that is not the last")
        if output is not self.value or self.value.ndim != 2:
            raise UnsupportedError("an output other than the last call's logits")
        layers: list[Layer] = [*self.spatial, *self.linear]
        if layers and layers[-1].relu:
            raise UnsupportedError("ReLU behind the last layer")
        if sorted(self.used) != sorted(self.places.values()):
            raise UnsupportedError("a parameter that is not used once")
        return Chain(self.sample, tuple(self.spatial), tuple(self.linear), len(self.flat.w))

    def _place(self, parameter: Tensor | None) -> int | None:
        if parameter is None:
            return None
        if id(parameter) not in self.places:
            raise UnsupportedError("a weight that is not trained, or computed from others")
        self.used.append(self.places[id(parameter)])
        return self.used[-1]

    def _convolution(
        self, x: Tensor, w: Tensor, bias: Tensor | None, stride: list[int], padding: list[int],
        dilation: list[int], transposed: bool, outside: list[int], groups: int,
    ) -> None:  # fmt: skip
        kernel = (w.shape[2], w.shape[3]) if w.ndim == 4 else (0, 0)
        if w.ndim != 4 or transposed or dilation != [1, 1] or any(p >= k for p, k in zip(padding, kernel)):
            raise UnsupportedError("a convolution that is transposed, dilated, not of images or padded beyond it")
        place, bias_place = self._place(w), self._place(bias)
        assert place is not None
        self.spatial.append(
            Convolution(x.shape[1], w.shape[0], kernel, pair(stride), pair(padding), groups, place, bias_place)
        )

    def _max_pool(
        self, x: Tensor, kernel: list[int], stride: tuple[int, ...] = (), padding: tuple[int, ...] = (0,),
        dilation: tuple[int, ...] = (1,), ceil: bool = False,
    ) -> None:  # fmt: skip
        if any(padding) or {*dilation} != {1} or ceil or math.prod(pair(kernel)) > MOST_SEATS:
            raise UnsupportedError("a max-pooling with padding, dilation, a rounded-up size or a large window")
        relu = bool(self.spatial) and self.spatial[-1].relu
        if relu:  # the same after the pooling, with less work
            self.spatial[-1] = replace(self.spatial[-1], relu=False)
        self.spatial.append(Pooling(True, pair(kernel), pair(stride or kernel), relu))

    def _mean_pool(
        self, x: Tensor, kernel: list[int], stride: tuple[int, ...] = (), padding: tuple[int, ...] = (0,),
        ceil: bool = False, count_padding: bool = True, divisor: int | None = None,
    ) -> None:  # fmt: skip
        if any(padding) or ceil or divisor:
            raise UnsupportedError("a mean-pooling with padding, a rounded-up size or a divisor")
        self.spatial.append(Pooling(False, pair(kernel), pair(stride or kernel)))

    def _adaptive_pool(self, x: Tensor, size: list[int]) -> None:
        height, width = x.shape[2:]
        if height % size[0] or width % size[1]:
            raise UnsupportedError("an adaptive pooling with windows of several sizes")
        window = height // size[0], width // size[1]
        self.spatial.append(Pooling(False, window, window))

    def _mean(self, x: Tensor, dims: list[int], keep: bool = False) -> None:
        if x.ndim != 4 or [d % 4 for d in dims] not in LAST_TWO:
            raise UnsupportedError(f"a mean over dimensions {dims}")
        window = x.shape[2], x.shape[3]
        self.spatial.append(Pooling(False, window, window))

    def _linear(self, x: Tensor, w: Tensor, bias: Tensor | None) -> None:
        if id(w) not in self.turned:
            raise UnsupportedError("a product with something other than a weight")
        place, bias_place = self._place(self.turned[id(w)]), self._place(bias)
        assert place is not None
        length, epsilon = self.rescaling.take()
        self.linear.append(Linear(w.shape[0], w.shape[1], place, bias_place, length=length, epsilon=epsilon))

    def _relu(self, x: Tensor) -> None:
        if self.rescaling.length:
            raise UnsupportedError("ReLU of features that were scaled to one length")
        if self.linear:
            self.linear[-1] = replace(self.linear[-1], relu=True)
        elif self.spatial:
            self.spatial[-1] = replace(self.spatial[-1], relu=True)
        else:
            raise UnsupportedError("ReLU of the input")


class Rescaling:
    """Follows x / sqrt(sum x^2 + epsilon) * length, as `models.heads.of_length` computes it, before a linear layer."""

    def __init__(self) -> None:
        self.norm: object = None  # the latest value on the way from x^2 to the root
        self.step = 0
        self.length = self.epsilon = 0.0

    def reads(self, call: Any, args: tuple[Any, ...], result: Any, value: Tensor) -> bool:
        """Whether a call belongs to the pattern; `value` is the one value of the model's chain."""
        step = self.step
        if call is aten.pow.Tensor_Scalar and args[0] is value and args[1] == 2 and value.ndim == 2 and not self.length:
            self.step = 1
        elif call is aten.sum.dim_IntList and step == 1 and args[0] is self.norm and (*args[1:],) == ([1], True):
            self.step = 2
        elif call is aten.add.Tensor and step == 2 and args[0] is self.norm and isinstance(args[1], float):
            self.step, self.epsilon = 3, args[1]
        elif call is aten.sqrt.default and step == 3 and args[0] is self.norm:
            self.step = 4
        elif call is aten.div.Tensor and step == 4 and args[0] is value and args[1] is self.norm:
            self.step, self.length = 5, 1.0
        elif call is aten.mul.Tensor and step == 5 and args[0] is value and isinstance(args[1], float) and args[1] > 0:
            self.step, self.length = 0, args[1]
        else:
            return False
        self.norm = result
        return True

    def take(self) -> tuple[float, float]:
        """Return the length and epsilon of the features so far, zero if they are not scaled, and begin anew."""
        length, epsilon = self.length, self.epsilon
        if self.step not in (0, 5):
            raise UnsupportedError("a part of a rescaling")
        self.step, self.length, self.epsilon = 0, 0.0, 0.0
        return length, epsilon


def pair(values: Any) -> tuple[int, int]:
    """Return a pair; a single value stands for both."""
    return (values[0], values[-1])
