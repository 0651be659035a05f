"""The stages of a pipeline for updates, by name. A new one is a file here and a line in this list."""

from __future__ import annotations

from fedrecall.components import Section
from fedrecall.updates.base import Occasion, Stage
from fedrecall.updates.pipeline import Pipeline

STAGES: dict[str, type[Stage]] = {}
STAGE: Section[Stage] = Section("updates", STAGES, Stage)

__all__ = ["STAGE", "STAGES", "Occasion", "Pipeline", "Stage"]
