"""Weights that a user gives: read from a file, compared with the model name by name, loaded into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedrecall.errors import InputError
from fedrecall.vector import Tensors

# The types that a model's weights are made from. Complex and 8-bit numbers would lose what they mean.
READ = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
READ |= {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}


def read_weights(path: Path) -> Tensors:
    """The tensors of a safetensors file. No other kind is read: a pickle can run anything."""
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r} with weights")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError):
        raise InputError(
            f"the weights {str(path)!r} are damaged or no safetensors file; "
            "safetensors.torch.save_file(model.state_dict(), path) writes one"
        ) from None


def check_weights(given: Mapping[str, Tensor], module: nn.Module, what: str) -> None:
    """Are these the weights of this model? If not, a sentence about the first that is not."""
    state = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    unknown = [name for name in given if name not in state]
    # Of tied weights, a file may have one name only.
    there = {state[name].data_ptr() for name in given if name in state}
    for name, tensor in state.items():
        if name not in given and tensor.data_ptr() not in there:
            other = f"; there is {unknown[0]!r}, which the model has not" if unknown else ""
            raise InputError(f"the model has {name!r}, which is not in {what}{other}")
    for name, tensor in given.items():
        if name not in state:
            raise InputError(f"the model has no {name!r}, which is in {what}")
        if not isinstance(tensor, Tensor):
            raise InputError(f"{name!r} in {what} is a {type(tensor).__name__}; a tensor was expected")
        if tensor.shape != state[name].shape:
            raise InputError(
                f"{name!r} has the shape {list(tensor.shape)} in {what} and {list(state[name].shape)} in the model"
            )
        if tensor.dtype not in READ:
            raise InputError(
                f"{name!r} in {what} has the type {str(tensor.dtype).removeprefix('torch.')}; "
                f"{str(state[name].dtype).removeprefix('torch.')} was expected"
            )
        if not torch.isfinite(tensor.to(state[name].dtype)).all():  # a float64 may be too large for the model
            raise InputError(f"{name!r} in {what} has values that are not finite numbers")


def with_weights(make_model: Callable[[], nn.Module], weights: Mapping[str, Tensor]) -> nn.Module:
    """A new model with these weights, which were checked."""
    model = make_model()
    model.load_state_dict(dict(weights), strict=False)
    return model


def load_weights(module: nn.Module, path: Path) -> None:
    """Put the weights of a file into a model, in place."""
    weights = read_weights(path)
    check_weights(weights, module, f"the weights in {str(path)!r}")
    module.load_state_dict(weights, strict=False)
