"""FedDisco: clients whose classes are spread more evenly weigh more in the mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedrecall.algorithms.base import Algorithm
from fedrecall.algorithms.context import ClientUpdate, ServerContext
from fedrecall.config.options import Rate
from fedrecall.core.vector import Tensors


@dataclass(frozen=True)
class FedDisco(Algorithm):
    """Discrepancy-aware weights of the clients' models.

    Ye et al., "FedDisco: Federated Learning with Discrepancy-Aware Collaboration", ICML 2023, arXiv 2305.19229.

    p_k is proportional to max(0, n_k - a d_k + b): n_k the client's share of the round's samples, d_k its share of the
    sum of KL(beta_k, uniform) over the round. Weights are those of samples if all are zero. Class counts leave the
    client.
    """

    a: Annotated[Rate, "weight of the discrepancy"] = 0.5
    b: Annotated[Rate, "added to every client's weight"] = 0.1
    needs: ClassVar[frozenset[str]] = frozenset({"clients"})
    discloses: ClassVar[frozenset[str]] = frozenset({"class_counts"})

    def aggregate_updates(self, server: Tensors, updates: Sequence[ClientUpdate], context: ServerContext) -> Tensors:
        samples = torch.tensor([update.samples for update in updates], dtype=torch.float64)
        counts = torch.stack([context.class_counts(update.client) for update in updates]).double()
        weights = self.weights(samples, counts)
        total = sum(weight * update.sent["w"].double() for weight, update in zip(weights.tolist(), updates))
        assert isinstance(total, Tensor)
        return {"w": total / weights.sum()}

    def weights(self, samples: Tensor, counts: Tensor) -> Tensor:
        """Return the clients' weights from their numbers of samples and their class counts, one row each."""
        beta = counts / counts.sum(1, keepdim=True)
        discrepancy = torch.where(beta > 0, beta * (beta * counts.shape[1]).log(), 0.0).sum(1)
        shares = samples / samples.sum()
        weights = (shares - self.a * discrepancy / discrepancy.sum().clamp(min=1e-12) + self.b).clamp(min=0)
        return weights if bool(weights.any()) else shares
