# The public names and where they are; __init__.py imports them when they are first asked for.
from .algorithms import (
    GMA,
    Algorithm,
    Centralised,
    Ditto,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBN,
    FedCurv,
    FedDyn,
    FedExP,
    FedNova,
    FedPer,
    FedProx,
    FedYogi,
    LocalOnly,
    LocalSteps,
    Moon,
    Population,
    Scaffold,
    ServerContext,
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
from .objectives import WSM, CrossEntropy, FedLC, FedNTD, FedRS, FedVLS, Mask, Objective
from .optimisers import SGD, Optimiser
from .participation import Participation, UniformSampling
from .recipe.settings import Local
from .studies.sweep import Study, sweep
from .trackers import MLflow, TensorBoard, Tracker, WandB
from .updates import Stage
from .version import __version__

__all__ = [
    "GMA",
    "SGD",
    "WSM",
    "Algorithm",
    "Centralised",
    "Classwise",
    "CrossEntropy",
    "Diagnosis",
    "Dirichlet",
    "Ditto",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedCurv",
    "FedDyn",
    "FedExP",
    "FedLC",
    "FedNTD",
    "FedNova",
    "FedPer",
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
    "MLflow",
    "Mask",
    "Moon",
    "Natural",
    "Objective",
    "Optimiser",
    "Participation",
    "Partition",
    "Plain",
    "Population",
    "Round",
    "Run",
    "Scaffold",
    "ServerContext",
    "Shards",
    "SplitFile",
    "Stage",
    "Study",
    "TensorBoard",
    "Tracker",
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
