"""Federated learning on clients whose labels differ, without the forgetting."""

from __future__ import annotations

from fedrecall.algorithms import Algorithm, Centralised, FedAvg, LocalOnly
from fedrecall.data.federation import Federation
from fedrecall.data.partition import Classwise, Dirichlet, Iid, Natural, Shards
from fedrecall.data.transform import Images, Plain
from fedrecall.errors import InputError
from fedrecall.losses import WSMLoss, class_proportions, reweighted_cross_entropy
from fedrecall.objectives import WSM, CrossEntropy, Objective
from fedrecall.run import Run, federate
from fedrecall.settings import Local
from fedrecall.version import __version__

__all__ = [
    "WSM",
    "Algorithm",
    "Centralised",
    "Classwise",
    "CrossEntropy",
    "Dirichlet",
    "FedAvg",
    "Federation",
    "Iid",
    "Images",
    "InputError",
    "Local",
    "LocalOnly",
    "Natural",
    "Objective",
    "Plain",
    "Run",
    "Shards",
    "WSMLoss",
    "__version__",
    "class_proportions",
    "federate",
    "reweighted_cross_entropy",
]
