"""Ways to choose a round's clients, by name. A new one is a file here and a line in this list."""

from __future__ import annotations

from fedrecall.participation.base import Participation
from fedrecall.participation.uniform import Uniform

PARTICIPATIONS: dict[str, type[Participation]] = {"uniform": Uniform}

__all__ = ["PARTICIPATIONS", "Participation", "Uniform"]
