"""Build a job's model and check it before training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fedrecall.backend.torch_state import fixed_torch_state, torch_threads
from fedrecall.core.rng import default_generator
from fedrecall.core.vector import HERE, FlatModel, materialise
from fedrecall.data.federation import Federation
from fedrecall.errors import InputError, short_repr
from fedrecall.models.embedding import MeanEmbedding
from fedrecall.models.uniform_draws import UniformDraws
from fedrecall.user_code import has_their_lines


def build_model(
    make_model: Callable[[], nn.Module],
    federation: Federation,
    seed: int,
    threads: int,
    device: torch.device = HERE,
) -> FlatModel:
    """Return the model as flat vectors, with initial weights that are a function of the seed."""
    with fixed_torch_state(), default_generator(seed, "init"), torch_threads(threads), UniformDraws():
        module = make_model()
        if torch.get_default_dtype() != torch.float32:
            # Importing the user's module has set another default dtype, which later models would not get.
            torch.set_default_dtype(torch.float32)
            with default_generator(seed, "init"):
                module = make_model()
        if not isinstance(module, nn.Module):
            raise InputError(f"the model is {short_repr(module)}; a torch.nn.Module was expected")
        materialise(module, partial(dry_batch, federation))
        refuse_broken_convolutions(module)
        for inner in module.modules():
            if isinstance(inner, nn.GroupNorm):
                inner.register_forward_pre_hook(contiguous_without_gradient)
        flat = FlatModel(module, device)
        plain_strides_on_one_channel(module)
        return flat


def least_samples(module: nn.Module) -> int:
    """Return the smallest training batch: 2 with batch norm, which has no statistics of one sample."""
    return 2 if any(isinstance(inner, nn.modules.batchnorm._BatchNorm) for inner in module.modules()) else 1


def has_statistics(module: nn.Module) -> bool:
    """Whether the model normalises by running statistics."""
    norms = (inner for inner in module.modules() if isinstance(inner, nn.modules.batchnorm._BatchNorm))
    return any(norm.running_mean is not None for norm in norms)


def trains_otherwise(module: nn.Module) -> bool:
    """Whether batch norm or dropout makes the outputs in training mode differ from those in eval mode."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    return any(isinstance(inner, kinds) for inner in module.modules())


def refuse_broken_convolutions(module: nn.Module) -> None:
    """Raise an `InputError` for strided 1x1 convolutions on few channels: on channels last, oneDNN's gradient
    writes out of bounds (oneDNN issue 6035), and the process may crash or continue with wrong numbers."""
    for name, layer in module.named_modules():
        if not isinstance(layer, nn.Conv2d) or set(layer.kernel_size) != {1} or set(layer.stride) == {1}:
            continue
        channels = layer.in_channels // layer.groups
        if 1 < channels < 16:
            raise InputError(
                f"layer {name!r} of the model is a 1x1 convolution with stride {layer.stride[0]} on {channels} "
                "channels, whose gradient is broken in PyTorch's CPU library; take every second pixel first, by "
                f"AvgPool2d(1, {layer.stride[0]}), and convolve with stride 1"
            )


def strided_on_one_channel(module: nn.Module) -> list[nn.Conv2d]:
    """Return the convolutions on one channel with a stride along rows.

    If their images or weights have channels-last strides, oneDNN reads out of bounds for rows with one output
    (torch 2.13).
    """
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    return [layer for layer in convolutions if layer.in_channels == 1 and layer.stride[1] != 1]


def plain_strides_on_one_channel(module: nn.Module) -> None:
    """Give images and weights of these convolutions channels-first strides, which address the same memory."""
    for layer in strided_on_one_channel(module):
        layer.weight.data = with_plain_strides(layer.weight.data)
        layer.register_forward_pre_hook(lambda _, inputs: (with_plain_strides(inputs[0]), *inputs[1:]))


def with_plain_strides(x: Tensor) -> Tensor:
    return x.flatten().view(x.shape)


def contiguous_without_gradient(norm: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """Return images that need no gradient as channels first: on channels last, group norm's backward pass without
    an input gradient kills the process (torch 2.13)."""
    if not inputs or inputs[0].requires_grad or not torch.is_grad_enabled():
        return None
    # Copy, because one-channel strides count as both layouts.
    return inputs[0].clone(memory_format=torch.contiguous_format), *inputs[1:]


def check_outputs(flat: FlatModel, federation: Federation) -> None:
    """Raise an `InputError` unless the model takes these samples and returns a score for each class."""
    refuse_other_inputs(flat.module)
    was_training = flat.module.training
    x = dry_batch(federation, flat.w.dtype)
    try:
        with torch.no_grad():
            logits = flat.module.eval()(x)
    except InputError:
        raise
    except Exception as error:
        tried = f"on two samples, of shape {tuple(x.shape)}"
        if has_their_lines(error):
            error.add_note(f"(the model, {tried})")
            raise
        reason = " ".join(str(error).split())
        raise InputError(f"the model fails {tried}: {type(error).__name__}: {reason}") from None
    flat.module.train(was_training)
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if not isinstance(shape, tuple) or len(shape) != 2 or shape[1] != federation.num_classes:
        refused = InputError(
            f"the model answers two samples with {shape}; two rows of {federation.num_classes} class scores "
            "were expected"
        )
        raise with_wrapper(refused, call_for_logits(flat.module, logits))


def refuse_other_inputs(module: nn.Module) -> None:
    """Raise an `InputError` if the model's `forward` needs inputs besides the samples."""
    others = [name for name, needed in further_inputs(module).items() if needed]
    if others:
        refused = InputError(f"the model needs {' and '.join(others)} besides the samples, which are its only input")
        raise with_wrapper(refused, f"self.model(x, {', '.join(map(as_argument, others))})")


def further_inputs(module: nn.Module) -> dict[str, bool]:
    """Return the parameters of `forward` after the first one, and whether a call must give them."""
    try:
        _, *others = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # forward is not Python, or has no parameter
        return {}
    named = [other for other in others if other.kind not in (other.VAR_POSITIONAL, other.VAR_KEYWORD)]
    return {other.name: other.default is other.empty for other in named}


def as_argument(name: str) -> str:
    return f"{name}=(x != 0).long()" if "mask" in name else f"{name}=.."


def call_for_logits(module: nn.Module, output: object) -> str:
    """Return the call that takes the logits out of this output, as of Hugging Face's models; "" if there is none."""
    mask = "attention_mask" in further_inputs(module)  # without it, padding would count as words
    call = f"self.model(x, {as_argument('attention_mask')})" if mask else "self.model(x)"
    if hasattr(output, "logits"):
        return f"{call}.logits"
    if isinstance(output, Mapping) and "logits" in output:
        return f'{call}["logits"]'
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return f"{call}[0]"
    return ""


def with_wrapper(error: InputError, call: str) -> InputError:
    """Return the error with the lines that wrap the model, if a call is known that makes it fit."""
    if call:
        error.add_note(
            "wrap it, for instance:\n"
            "class Wrapped(torch.nn.Module):\n"
            "    def __init__(self, model): super().__init__(); self.model = model\n"
            f"    def forward(self, x): return {call}"
        )
    return error


def refuse_unknown_ids(module: nn.Module, federation: Federation) -> None:
    """Raise an `InputError` for token ids out of range. On the CPU the model raises it itself; on a device the
    error is noticed late and makes the device unusable for the process."""
    if isinstance(module, MeanEmbedding):
        for samples in (federation.train, federation.test):
            if samples is not None and np.issubdtype(samples.x.dtype, np.integer):
                module.refuse(int(samples.x.min()), int(samples.x.max()))


def dry_batch(federation: Federation, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return two samples as input of the model."""
    x, _ = federation.train.gather(torch.zeros(2, dtype=torch.long))
    return model_input(federation.transform(x), dtype)


def model_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return floats in the model's precision; images channels last, the layout that convolutions use here."""
    if x.is_floating_point():
        x = x.to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
