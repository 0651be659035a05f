# The public names and where they are; __init__.py imports them when they are first asked for.
from .algorithms import (
    GMA,
    Algorithm,
    Centralised,
    CoordinateMedian,
    Ditto,
    FedACG,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBN,
    FedCM,
    FedCurv,
    FedDF,
    FedDisco,
    FedDyn,
    FedExP,
    FedLESAM,
    FedNova,
    FedPer,
    FedProx,
    FedSAM,
    FedYogi,
    Krum,
    LocalOnly,
    LocalSteps,
    Moon,
    Population,
    Scaffold,
    ServerContext,
    TrimmedMean,
)
from .api.diagnose import diagnose
from .api.diagnosis import Diagnosis
from .api.execute import write_report
from .api.federate import federate
from .api.run import Run
from .client.update import Update
from .core.labels import Labels, class_proportions
from .core.losses import WSMLoss, reweighted_cross_entropy
from .data.federation import Federation
from .data.partition import Classwise, Dirichlet, Iid, Natural, Partition, Shards
from .data.split_file import SplitFile
from .data.transform import Images, Plain
from .errors import InputError
from .measure.watcher import Round, Watcher
from .objectives import WSM, CrossEntropy, FedDecorr, FedLC, FedLMD, FedNTD, FedRS, FedVLS, Mask, Objective
from .optimisers import SGD, Adam, AdamW, Optimiser
from .participation import CyclicSampling, Participation, PoissonSampling, SamplingBySize, UniformSampling
from .recipe.settings import Local
from .studies.sweep import Study, sweep
from .trackers import MLflow, TensorBoard, Tracker, WandB
from .updates import DifferentialPrivacy, Quantise, Stage, TopK
from .version import __version__

__all__ = [
    "GMA",
    "SGD",
    "WSM",
    "Adam",
    "AdamW",
    "Algorithm",
    "Centralised",
    "Classwise",
    "CoordinateMedian",
    "CrossEntropy",
    "CyclicSampling",
    "Diagnosis",
    "DifferentialPrivacy",
    "Dirichlet",
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
    "FedDecorr",
    "FedDisco",
    "FedDyn",
    "FedExP",
    "FedLC",
    "FedLESAM",
    "FedLMD",
    "FedNTD",
    "FedNova",
    "FedPer",
    "FedProx",
    "FedRS",
    "FedSAM",
    "FedVLS",
    "FedYogi",
    "Federation",
    "Iid",
    "Images",
    "InputError",
    "Krum",
    "Labels",
    "Local",
    "LocalOnly",
    "LocalSteps",
    "MLflow",
    "Mask",
    "Moon",
    "Natural",
    "Objective",
    "Optimiser",
    "Participation",
    "Partition",
    "Plain",
    "PoissonSampling",
    "Population",
    "Quantise",
    "Round",
    "Run",
    "SamplingBySize",
    "Scaffold",
    "ServerContext",
    "Shards",
    "SplitFile",
    "Stage",
    "Study",
    "TensorBoard",
    "TopK",
    "Tracker",
    "TrimmedMean",
    "UniformSampling",
    "Update",
    "WSMLoss",
    "WandB",
    "Watcher",
    "__version__",
    "class_proportions",
    "diagnose",
    "federate",
    "reweighted_cross_entropy",
    "sweep",
    "write_report",
]
