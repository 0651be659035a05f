"""MOON: a contrastive term on the representations of the local, global and previous local model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor
from torch.nn import functional as F

from fedrecall.algorithms.base import Algorithm, Finished, LocalSteps
from fedrecall.config.options import Rate, Scale
from fedrecall.core.vector import Tensors


@dataclass(frozen=True)
class Moon(Algorithm):
    """A contrastive term keeps the representation close to the global model's.

    Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021, arXiv 2103.16257.

    The loss gains -mu log [e^(sim(z, z_glob)/T) / (e^(sim(z, z_glob)/T) + e^(sim(z, z_prev)/T))], sim the cosine.
    Unlike in the paper there is no projection head: the representation is the model's own. In a client's first
    round z_prev is z_glob, so the term has no gradient.
    """

    mu: Annotated[Rate, "strength of the contrastive term"] = 1.0
    temperature: Annotated[Scale, "T of the contrastive term"] = 0.5
    representation: Annotated[
        str | None, "the module whose output is the representation; null: the input of the last nn.Linear"
    ] = None
    title: ClassVar[str] = "MOON"
    needs: ClassVar[frozenset[str]] = frozenset({"features", "previous"})

    def init_client(self, x: Tensor) -> Tensors:
        return {"w": x}

    def penalty(self, features: Tensor, global_features: Tensor, previous_features: Tensor) -> Tensor:
        z, z_glob, z_prev = (F.normalize(z, eps=1e-8) for z in (features, global_features, previous_features))
        # -log [e^a / (e^a + e^b)] = log(1 + e^(b - a)), in which equal representations cancel bitwise
        return self.mu * F.softplus((z * (z_prev - z_glob)).sum(1) / self.temperature).mean()

    def finish(self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors) -> Finished:
        return {"w": y}, {"w": y}
