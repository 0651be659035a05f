"""Read weights from a user's file, check them against a model, and load them into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedrecall.core.vector import Tensors
from fedrecall.errors import InputError

# The accepted dtypes. Complex and 8-bit float weights would lose their meaning in a model's dtype.
READ = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
READ |= {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}


def read_weights(path: Path) -> Tensors:
    """Return the tensors of a safetensors file. Pickles are refused, because they can run arbitrary code."""
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
    """Raise an `InputError` about the first tensor that does not fit the model."""
    state = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    unknown = [name for name in given if name not in state]
    # A file may have tied weights under one name only.
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
    """Return a new model with these weights, which must have been checked."""
    model = make_model()
    model.load_state_dict(dict(weights), strict=False)
    return model


def load_weights(module: nn.Module, path: Path) -> None:
    """Check the weights of a file and load them into a model in place."""
    weights = read_weights(path)
    check_weights(weights, module, f"the weights in {str(path)!r}")
    module.load_state_dict(weights, strict=False)
