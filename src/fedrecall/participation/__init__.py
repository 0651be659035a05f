"""The participation schemes by name. To add one, add a file here and an entry to `PARTICIPATIONS`."""

from __future__ import annotations

from fedrecall.config.components import Section
from fedrecall.participation.base import Participation
from fedrecall.participation.uniform import UniformSampling

PARTICIPATIONS: dict[str, type[Participation]] = {"uniform": UniformSampling}
PARTICIPATION: Section[Participation] = Section("participation", PARTICIPATIONS, Participation)

__all__ = ["PARTICIPATION", "PARTICIPATIONS", "Participation", "UniformSampling"]
