"""The job of a run: model, algorithm, objective and settings of local training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from fedrecall.algorithms.base import Algorithm
from fedrecall.backend.device import CPU, Device
from fedrecall.client.lanes.lowering import Lowering
from fedrecall.config.options import Shares
from fedrecall.core.vector import FlatModel
from fedrecall.data.federation import Federation
from fedrecall.models.build import build_model
from fedrecall.models.representation import home_of
from fedrecall.objectives.base import Objective
from fedrecall.optimisers import Optimiser
from fedrecall.recipe.settings import BatchNorm, Local
from fedrecall.updates.pipeline import Pipeline


@dataclass(frozen=True)
class Job:
    """The part of a run that is sent to every worker, once."""

    model: Callable[[], nn.Module]
    algorithm: Algorithm
    objective: Objective
    local: Local
    seed: int
    batch_norm: BatchNorm = "average"
    judged_for: str | Shares = "as_trained"  # class shares assumed when a model is evaluated
    lowering: Lowering | None = None  # None if PyTorch takes the steps
    pipeline: Pipeline = field(default_factory=Pipeline)  # stages that transform updates
    optimiser: Optimiser = None  # type: ignore[assignment]  # default: the one that `local` names

    def __post_init__(self) -> None:
        if self.optimiser is None:
            object.__setattr__(self, "optimiser", self.local.create_optimiser())

    def for_model(self, flat: FlatModel) -> Job:
        """Return the job with its algorithm bound to the model's parameter slots."""
        algorithm = self.algorithm.for_model(flat.parameter_slots)
        if algorithm.needs & {"head", "batch_norm"}:
            algorithm = algorithm.for_home(home_of(type(algorithm).__name__, algorithm.needs, flat))
        return replace(self, algorithm=algorithm)

    def logit_shift(self, federation: Federation) -> Tensor | None:
        """Return the shift of a model's logits in evaluation, or None."""
        if self.judged_for == "as_trained":
            return None
        return self.objective.shift_to(self.judged_for, federation.pooled_shares)

    def build_model(self, federation: Federation, device: Device = CPU) -> FlatModel:
        """Return the model with its initial weights, as flat vectors."""
        return build_model(self.model, federation, self.seed, self.local.threads, device.torch)

    @property
    def knows_validation(self) -> bool:
        """Whether the loss also counts the labels of a client's validation samples."""
        return self.local.beta_from == "train+validation"

    @property
    def own_buffers(self) -> bool:
        """Whether batch-norm statistics stay with the clients."""
        bound = self.algorithm.personal and not self.algorithm.exchanges
        return self.batch_norm == "local" or self.algorithm.keeps_statistics or bound

    @property
    def keeps_state(self) -> bool:
        """Whether a client may keep something from round to round."""
        return self.algorithm.keeps_state or self.algorithm.personal or self.own_buffers or bool(self.pipeline)

    @property
    def needs_single_updates(self) -> bool:
        """Whether the server needs each client's update, so that engines may not return sums."""
        return "clients" in self.algorithm.needs or bool(self.pipeline)
