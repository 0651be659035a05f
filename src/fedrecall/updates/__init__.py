"""The stages of an update pipeline by name. To add one, add a file here and an entry to `STAGES`."""

from __future__ import annotations

from fedrecall.config.components import Section
from fedrecall.updates.base import Stage, StageContext
from fedrecall.updates.pipeline import Pipeline

STAGES: dict[str, type[Stage]] = {}
STAGE: Section[Stage] = Section("updates", STAGES, Stage)

__all__ = ["STAGE", "STAGES", "Pipeline", "Stage", "StageContext"]
