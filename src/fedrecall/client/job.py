"""The job of a run: model, algorithm, objective and settings of local training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor, nn, zeros_like

from fedrecall.algorithms.base import Algorithm, LocalSteps
from fedrecall.backend.device import CPU, Device
from fedrecall.client.lanes.lowering import Lowering
from fedrecall.client.moments import PREFIX, with_moment_prefix
from fedrecall.config.options import Shares
from fedrecall.core.vector import FlatModel, Payload, Tensors
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
        """Return the job with its algorithm and its stages bound to the model's parameter slots."""
        algorithm = self.algorithm.for_model(flat.parameter_slots)
        if algorithm.needs & {"head", "batch_norm"}:
            algorithm = algorithm.for_home(home_of(type(algorithm).__name__, algorithm.needs, flat))
        bound = replace(self, algorithm=algorithm)
        return replace(bound, pipeline=self.pipeline.for_model(flat, bound.unmoved(flat.w))) if self.pipeline else bound

    def unmoved(self, x: Tensor) -> Tensors:
        """Return the tensors that a client sends if it has not moved, for their names and shapes."""
        algorithm, local = self.algorithm, LocalSteps(1, 1.0, 1, self.optimiser)
        server, client = self.broadcast(self.init_server(x.clone())), algorithm.init_client(x.clone())
        sent, _ = algorithm.finish(x.clone(), server, client, local, {"fisher": zeros_like(x)})
        return {**sent, **with_moment_prefix(self.optimiser.init(x))} if self.averages_moments else sent

    def wire_bytes(self, payload: Payload, sent: Tensors, buffers: Tensors) -> int:
        """Return the bytes of a client's message; what stages have made has no padding."""
        if not self.pipeline:
            return payload.bytes(sent, buffers)
        return sum(tensor.numel() * tensor.itemsize for tensor in (*sent.values(), *buffers.values()))

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
        algorithm, keeps_moments = self.algorithm, self.optimiser.state == "keep"
        return algorithm.keeps_state or algorithm.personal or self.own_buffers or bool(self.pipeline) or keeps_moments

    @property
    def averages_moments(self) -> bool:
        """Whether clients send their optimiser's moments with their updates."""
        return self.optimiser.state == "average"

    def init_server(self, x: Tensor) -> Tensors:
        """Return the server's state before the first round: the algorithm's, and moments that are averaged."""
        moments = self.optimiser.init(x) if self.averages_moments else {}
        return {**self.algorithm.init(x), **with_moment_prefix(moments)}

    def weight(self, name: str, samples: int, steps: int) -> float:
        """Return the weight of a client's tensor in the round's sum; moments weigh as many as its samples."""
        return float(samples) if name.startswith(PREFIX) else self.algorithm.weight(name, samples, steps)

    def broadcast(self, server: Tensors) -> Tensors:
        """Return the tensors that a client is sent, of the algorithm and of the optimiser."""
        moments = {name: tensor for name, tensor in server.items() if name.startswith(PREFIX)}
        return {**self.algorithm.broadcast(server), **moments}

    @property
    def compares_with_sent(self) -> bool:
        """Whether steps need the outputs of the model that the client was sent."""
        return "teacher" in self.objective.needs or "features" in self.algorithm.needs

    @property
    def needs_single_updates(self) -> bool:
        """Whether the server needs each client's update, so that engines may not return sums."""
        return "clients" in self.algorithm.needs or bool(self.pipeline)
