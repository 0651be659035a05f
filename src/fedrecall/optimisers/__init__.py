"""The local optimisers, by name. A new one is a file here and a line in this list."""

from __future__ import annotations

from fedrecall.components import Section
from fedrecall.optimisers.base import Optimiser
from fedrecall.optimisers.sgd import SGD

OPTIMISERS: dict[str, type[Optimiser]] = {"sgd": SGD}
# Momentum and weight decay have keys of their own in the recipe's section `local`.
OPTIMISER: Section[Optimiser] = Section(
    "local.optimiser", OPTIMISERS, Optimiser, supplied=frozenset({"momentum", "weight_decay"})
)

__all__ = ["OPTIMISER", "OPTIMISERS", "SGD", "Optimiser"]
