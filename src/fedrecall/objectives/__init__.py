"""The objectives by name; to add one, write a module in this package and list its class here."""

from __future__ import annotations

from fedrecall.config.components import Section
from fedrecall.core.labels import Labels
from fedrecall.objectives.base import Objective
from fedrecall.objectives.cross_entropy import CrossEntropy
from fedrecall.objectives.feddecorr import FedDecorr
from fedrecall.objectives.fedlc import FedLC
from fedrecall.objectives.fedlmd import FedLMD
from fedrecall.objectives.fedntd import FedNTD
from fedrecall.objectives.fedrs import FedRS
from fedrecall.objectives.fedvls import FedVLS
from fedrecall.objectives.loss_function import LossFunction
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
    "fedlmd": FedLMD,
    "feddecorr": FedDecorr,
}

OBJECTIVE: Section[Objective] = Section("objective", OBJECTIVES, Objective, adapter=LossFunction)

__all__ = [
    "OBJECTIVE",
    "OBJECTIVES",
    "WSM",
    "CrossEntropy",
    "FedDecorr",
    "FedLC",
    "FedLMD",
    "FedNTD",
    "FedRS",
    "FedVLS",
    "Labels",
    "LossFunction",
    "Mask",
    "Objective",
]
