"""The provenance of a run: digests of its data, its model and user code.

A recipe only names them, as in `data.path: my.npz` or `model: python`; runs with equal recipes may still differ.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from typing import Any

from torch import nn

from fedrecall.client.job import Job
from fedrecall.config.components import without_address
from fedrecall.data.federation import Federation
from fedrecall.recipe.recipe import Recipe
from fedrecall.user_code import user_source


def describe_origin(
    recipe: Recipe, job: Job, federation: Federation, module: nn.Module, weights: str | None
) -> dict[str, Any]:
    """Return the content of `origin.json`, by section of the recipe; `weights` is the digest of given weights."""
    code = code_digests([job.model, *map(type, module.modules())])
    given = {"weights": weights} if weights else {}
    return {
        "recipe": recipe.method_digest(),
        "data": {
            "digest": federation.digest(),
            "sample_shape": list(federation.sample_shape),
            "classes": federation.num_classes,
        },
        "partition": dict(federation.partition),
        "model": {"structure": structure_digest(module), "code": code, **given},
        "objective": {"code": code_digests([type(job.objective), getattr(job.objective, "function", None)])},
        "algorithm": {"code": code_digests([type(job.algorithm)])},
    }


def structure_digest(module: nn.Module) -> str:
    """Return a digest of the modules and the shapes of their tensors, whatever their values."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    shapes = [(name, tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad) for name, tensor in tensors]
    return short_digest(without_address(module) + repr(shapes))


def code_digests(things: Iterable[Any]) -> dict[str, str]:
    """Return digests of the source of the user's own code among `things`, by name, where it can be read."""
    digests = {}
    for thing in things:
        while isinstance(thing, functools.partial):
            thing = thing.func
        source = user_source(thing)
        if source is not None:
            digests[f"{thing.__module__}:{thing.__qualname__}"] = short_digest(source)
    return dict(sorted(digests.items()))


def short_digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
