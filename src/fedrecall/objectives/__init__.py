"""The objectives, by name. A new one is a file here and a line in this list."""

from __future__ import annotations

from fedrecall.objectives.base import Labels, Objective
from fedrecall.objectives.cross_entropy import CrossEntropy
from fedrecall.objectives.wsm import WSM

OBJECTIVES: dict[str, type[Objective]] = {
    "cross_entropy": CrossEntropy,
    "wsm": WSM,
}

__all__ = ["OBJECTIVES", "WSM", "CrossEntropy", "Labels", "Objective"]
