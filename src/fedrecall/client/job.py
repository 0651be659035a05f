"""What every worker of a run knows: the model, the algorithm, the objective and how clients train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn

from fedrecall.algorithms.base import Algorithm
from fedrecall.client.lanes.lowering import Lowering
from fedrecall.data.federation import Federation
from fedrecall.device import CPU, Device
from fedrecall.models.build import build_model
from fedrecall.objectives.base import Objective
from fedrecall.optimisers import SGD, Optimiser
from fedrecall.options import Shares
from fedrecall.recipe.recipe import Recipe
from fedrecall.recipe.settings import BatchNorm, Local
from fedrecall.vector import FlatModel


@dataclass(frozen=True)
class Job:
    """What every worker of a run needs to know, once."""

    model: Callable[[], nn.Module]
    algorithm: Algorithm
    objective: Objective
    local: Local
    seed: int
    batch_norm: BatchNorm = "average"
    judged_for: str | Shares = "as_trained"  # the class shares, when a model is evaluated
    lowering: Lowering | None = None  # what kernels compute; None: steps are PyTorch's own
    optimiser: Optimiser = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "optimiser", SGD(self.local.weight_decay, self.local.momentum))

    @classmethod
    def of(cls, recipe: Recipe, model: Callable[[], nn.Module], algorithm: Algorithm, objective: Objective) -> Job:
        """What a recipe says, with the things that it names."""
        rest = recipe.local, recipe.seed, recipe.batch_norm, recipe.evaluation.prior
        return cls(model, algorithm, objective, *rest)

    def logit_shift(self, federation: Federation) -> Tensor | None:
        """What is added to a model's logits when it is judged; None: nothing."""
        if self.judged_for == "as_trained":
            return None
        return self.objective.shift_to(self.judged_for, federation.pooled_shares)

    def build_model(self, federation: Federation, device: Device = CPU) -> FlatModel:
        """The model with its initial weights, as flat vectors."""
        return build_model(self.model, federation, self.seed, self.local.threads, device.torch)

    @property
    def knows_validation(self) -> bool:
        """Does the loss also count the labels of a client's validation samples?"""
        return self.local.beta_from == "train+validation"

    @property
    def own_buffers(self) -> bool:
        """Do batch-norm statistics stay with the clients?"""
        return self.algorithm.personal or self.batch_norm == "local"
