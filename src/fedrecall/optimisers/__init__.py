"""The local optimisers, by name. A new one is a file here and a line in this list."""

from __future__ import annotations

from fedrecall.optimisers.base import Optimiser
from fedrecall.optimisers.sgd import SGD

OPTIMISERS: dict[str, type[Optimiser]] = {"sgd": SGD}

__all__ = ["OPTIMISERS", "SGD", "Optimiser"]
