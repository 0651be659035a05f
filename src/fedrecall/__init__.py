"""Federated learning on clients whose labels differ, without the forgetting."""

from __future__ import annotations

from fedrecall.algorithms import (
    GMA,
    Algorithm,
    Centralised,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedCurv,
    FedDyn,
    FedExP,
    FedNova,
    FedProx,
    FedYogi,
    LocalOnly,
    LocalSteps,
    Moon,
    Population,
    Scaffold,
)
from fedrecall.data.federation import Federation
from fedrecall.data.partition import Classwise, Dirichlet, Iid, Natural, Shards
from fedrecall.data.transform import Images, Plain
from fedrecall.diagnosing import Diagnosis, diagnose
from fedrecall.errors import InputError
from fedrecall.losses import WSMLoss, class_proportions, reweighted_cross_entropy
from fedrecall.objectives import WSM, CrossEntropy, FedLC, FedNTD, FedRS, FedVLS, Labels, Mask, Objective
from fedrecall.run import Run, federate
from fedrecall.settings import Local
from fedrecall.version import __version__

__all__ = [
    "GMA",
    "WSM",
    "Algorithm",
    "Centralised",
    "Classwise",
    "CrossEntropy",
    "Diagnosis",
    "Dirichlet",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedCurv",
    "FedDyn",
    "FedExP",
    "FedLC",
    "FedNTD",
    "FedNova",
    "FedProx",
    "FedRS",
    "FedVLS",
    "FedYogi",
    "Federation",
    "Iid",
    "Images",
    "InputError",
    "Labels",
    "Local",
    "LocalOnly",
    "LocalSteps",
    "Mask",
    "Moon",
    "Natural",
    "Objective",
    "Plain",
    "Population",
    "Run",
    "Scaffold",
    "Shards",
    "WSMLoss",
    "__version__",
    "class_proportions",
    "diagnose",
    "federate",
    "reweighted_cross_entropy",
]
