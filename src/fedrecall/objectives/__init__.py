"""The objectives, by name. A new one is a file here and a line in this list."""

from __future__ import annotations

from fedrecall.labels import Labels
from fedrecall.objectives.base import Objective
from fedrecall.objectives.cross_entropy import CrossEntropy
from fedrecall.objectives.fedlc import FedLC
from fedrecall.objectives.fedntd import FedNTD
from fedrecall.objectives.fedrs import FedRS
from fedrecall.objectives.fedvls import FedVLS
from fedrecall.objectives.mask import Mask
from fedrecall.objectives.wsm import WSM

OBJECTIVES: dict[str, type[Objective]] = {
    "cross_entropy": CrossEntropy,
    "wsm": WSM,
    "mask": Mask,
    "fedrs": FedRS,
    "fedlc": FedLC,
    "fedntd": FedNTD,
    "fedvls": FedVLS,
}

__all__ = [
    "OBJECTIVES",
    "WSM",
    "CrossEntropy",
    "FedLC",
    "FedNTD",
    "FedRS",
    "FedVLS",
    "Labels",
    "Mask",
    "Objective",
]
