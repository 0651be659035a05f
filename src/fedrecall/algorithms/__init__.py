"""The algorithms, by name. A new one is a file here and a line in this list."""

from __future__ import annotations

from fedrecall.algorithms.base import Algorithm, LocalSteps
from fedrecall.algorithms.bounds import Centralised, LocalOnly
from fedrecall.algorithms.fedavg import FedAvg

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "centralised": Centralised,
    "local_only": LocalOnly,
}

__all__ = ["ALGORITHMS", "Algorithm", "Centralised", "FedAvg", "LocalOnly", "LocalSteps"]
