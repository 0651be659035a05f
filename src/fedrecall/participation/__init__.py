"""The participation schemes by name. To add one, add a file here and an entry to `PARTICIPATIONS`."""

from __future__ import annotations

from fedrecall.config.components import Section
from fedrecall.participation.base import Participation
from fedrecall.participation.by_size import SamplingBySize
from fedrecall.participation.cyclic import CyclicSampling
from fedrecall.participation.own_function import FunctionSampling
from fedrecall.participation.poisson import PoissonSampling
from fedrecall.participation.uniform import UniformSampling

PARTICIPATIONS: dict[str, type[Participation]] = {
    "uniform": UniformSampling,
    "by_size": SamplingBySize,
    "cyclic": CyclicSampling,
    "poisson": PoissonSampling,
}
PARTICIPATION: Section[Participation] = Section(
    "participation", PARTICIPATIONS, Participation, adapter=FunctionSampling
)

__all__ = [
    "PARTICIPATION",
    "PARTICIPATIONS",
    "CyclicSampling",
    "Participation",
    "PoissonSampling",
    "SamplingBySize",
    "UniformSampling",
]
