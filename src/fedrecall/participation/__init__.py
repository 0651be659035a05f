"""Ways to choose a round's clients, by name. A new one is a file here and a line in this list."""

from __future__ import annotations

from fedrecall.components import Section
from fedrecall.participation.base import Participation
from fedrecall.participation.uniform import UniformSampling

PARTICIPATIONS: dict[str, type[Participation]] = {"uniform": UniformSampling}
PARTICIPATION: Section[Participation] = Section("participation", PARTICIPATIONS, Participation)

__all__ = ["PARTICIPATION", "PARTICIPATIONS", "Participation", "UniformSampling"]
