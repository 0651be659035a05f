"""Robust aggregation: the coordinate-wise median of the clients' models."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedrecall import FedAvg


@dataclass(frozen=True)
class Median(FedAvg):
    """Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018, arXiv 1803.01498."""

    needs: ClassVar[frozenset[str]] = frozenset({"clients"})

    def aggregate_updates(self, server, updates, context):
        models = torch.stack([update.sent["w"] for update in updates]).double()
        ordered, middle = models.sort(0).values, len(models) // 2
        return {"w": ordered[middle] if len(models) % 2 else ordered[middle - 1 : middle + 1].mean(0)}
