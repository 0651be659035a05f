"""The local optimisers by name. To add one, add a file here and an entry to `OPTIMISERS`."""

from __future__ import annotations

from fedrecall.config.components import Section
from fedrecall.optimisers.adam import Adam, AdamW
from fedrecall.optimisers.base import Optimiser
from fedrecall.optimisers.sgd import SGD

OPTIMISERS: dict[str, type[Optimiser]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
# Momentum and weight decay have keys of their own in the recipe's section `local`.
OPTIMISER: Section[Optimiser] = Section(
    "local.optimiser", OPTIMISERS, Optimiser, supplied=frozenset({"momentum", "weight_decay"})
)

__all__ = ["OPTIMISER", "OPTIMISERS", "SGD", "Adam", "AdamW", "Optimiser"]
