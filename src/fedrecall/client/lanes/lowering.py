"""The lowering of a run's steps to kernels: decided before round 1 and sent to every worker."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedrecall.algorithms.base import Algorithm
from fedrecall.client.lanes.kernels.layers import Chain, Convolution, Pixels
from fedrecall.client.lanes.model_reader import UnsupportedError, chain_of
from fedrecall.core.vector import FlatModel
from fedrecall.data.transform import Images, Plain
from fedrecall.objectives.base import Objective
from fedrecall.objectives.cross_entropy import CrossEntropy
from fedrecall.objectives.wsm import WSM
from fedrecall.optimisers import SGD, Optimiser
from fedrecall.recipe.settings import Local

NARROW = 16  # channels; wider convolutions fill vector registers without lanes


@dataclass(frozen=True)
class Lowering:
    """The model as layers that have kernels, and the other parts of a step that kernels compute."""

    chain: Chain
    pixels: Pixels | None = None  # normalisation by kernels, if samples are image bytes
    own_loss: bool = False  # a kernel computes the loss, not torch

    @property
    def pays(self) -> bool:
        """Whether these kernels are clearly faster than PyTorch's: docs/performance.md has the measurements."""
        convolutions = [layer for layer in self.chain.spatial if isinstance(layer, Convolution)]
        narrow = all(layer.outputs <= NARROW for layer in convolutions)
        return narrow if convolutions else len(self.chain.linear) > 1


def lower(
    flat: FlatModel,
    x: Tensor,
    transform: Images | Plain,
    local: Local,
    algorithm: Algorithm,
    objective: Objective,
    optimiser: Optimiser,
) -> Lowering:
    """Return the lowering; raise `UnsupportedError` if anything has no kernel. `x` is any batch."""
    if "features" in algorithm.needs | objective.needs:
        raise UnsupportedError("a loss of features")
    if type(optimiser) is not SGD:
        raise UnsupportedError(f"the optimiser {type(optimiser).__name__}")
    if optimiser.state != "reset":
        raise UnsupportedError("an optimiser whose moments outlast the round")
    if local.clip_norm is not None:
        raise UnsupportedError("the clipping of gradients")
    if local.precision != "float32":
        raise UnsupportedError("a precision other than float32")
    if isinstance(transform, Images) and transform.smaller:
        raise UnsupportedError("training on crops that are smaller than the images")
    chain = chain_of(flat, x)
    # Another model that reads the batch, such as a teacher, needs floats.
    reads_bytes = isinstance(transform, Images) and not objective.needs
    pixels = Pixels(*transform.scale_and_shift) if isinstance(transform, Images) and reads_bytes else None
    return Lowering(chain, pixels, is_offset_cross_entropy(objective))


def is_offset_cross_entropy(objective: Objective) -> bool:
    """Whether a loss is log sum_c exp(f_c + offset_c) - f_y, with an offset for each client and class."""
    kind = type(objective)
    return kind is CrossEntropy or (kind is WSM and not objective.needs)


def unsupported_reason(lowering: Lowering, algorithm: Algorithm) -> str | None:
    """Return why lanes cannot hold a client each, or None: their kernels include loss and SGD."""
    if algorithm.corrects or algorithm.perturbs:
        return "the algorithm changes gradients"
    if not lowering.own_loss:
        return "the objective is neither cross-entropy nor WSM without distillation"
    return None
