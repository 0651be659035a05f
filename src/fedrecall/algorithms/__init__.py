"""The algorithms by name; to add one, write a module in this package and list its class here."""

from __future__ import annotations

from fedrecall.algorithms.base import Algorithm, LocalSteps, Population
from fedrecall.algorithms.bounds import Centralised, LocalOnly
from fedrecall.algorithms.context import ClientUpdate, ServerContext
from fedrecall.algorithms.ditto import Ditto
from fedrecall.algorithms.fedacg import FedACG
from fedrecall.algorithms.fedadagrad import FedAdagrad
from fedrecall.algorithms.fedadam import FedAdam
from fedrecall.algorithms.fedavg import FedAvg
from fedrecall.algorithms.fedavgm import FedAvgM
from fedrecall.algorithms.fedcm import FedCM
from fedrecall.algorithms.fedcurv import FedCurv
from fedrecall.algorithms.feddf import FedDF
from fedrecall.algorithms.feddisco import FedDisco
from fedrecall.algorithms.feddyn import FedDyn
from fedrecall.algorithms.fedexp import FedExP
from fedrecall.algorithms.fedlesam import FedLESAM
from fedrecall.algorithms.fednova import FedNova
from fedrecall.algorithms.fedprox import FedProx
from fedrecall.algorithms.fedsam import FedSAM
from fedrecall.algorithms.fedyogi import FedYogi
from fedrecall.algorithms.gma import GMA
from fedrecall.algorithms.moon import Moon
from fedrecall.algorithms.robust import CoordinateMedian, Krum, TrimmedMean
from fedrecall.algorithms.scaffold import Scaffold
from fedrecall.algorithms.stays_home import FedBN, FedPer
from fedrecall.config.components import Section

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "feddyn": FedDyn,
    "moon": Moon,
    "fedexp": FedExP,
    "gma": GMA,
    "fedcurv": FedCurv,
    "fedacg": FedACG,
    "fedcm": FedCM,
    "feddisco": FedDisco,
    "fedsam": FedSAM,
    "fedlesam": FedLESAM,
    "feddf": FedDF,
    "median": CoordinateMedian,
    "trimmed_mean": TrimmedMean,
    "krum": Krum,
    "fedper": FedPer,
    "fedbn": FedBN,
    "ditto": Ditto,
    "centralised": Centralised,
    "local_only": LocalOnly,
}

ALGORITHM: Section[Algorithm] = Section("algorithm", ALGORITHMS, Algorithm, supplied=frozenset({"home"}))

__all__ = [
    "ALGORITHM",
    "ALGORITHMS",
    "GMA",
    "Algorithm",
    "Centralised",
    "ClientUpdate",
    "CoordinateMedian",
    "Ditto",
    "FedACG",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedCM",
    "FedCurv",
    "FedDF",
    "FedDisco",
    "FedDyn",
    "FedExP",
    "FedLESAM",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedSAM",
    "FedYogi",
    "Krum",
    "LocalOnly",
    "LocalSteps",
    "Moon",
    "Population",
    "Scaffold",
    "ServerContext",
    "TrimmedMean",
]
