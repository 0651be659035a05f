"""The stages of an update pipeline by name. To add one, add a file here and an entry to `STAGES`."""

from __future__ import annotations

from fedrecall.config.components import Section
from fedrecall.updates.base import DecodeError, Stage, StageContext
from fedrecall.updates.dp import DifferentialPrivacy
from fedrecall.updates.pipeline import Pipeline
from fedrecall.updates.quantise import Quantise
from fedrecall.updates.top_k import TopK

STAGES: dict[str, type[Stage]] = {"dp": DifferentialPrivacy, "quantise": Quantise, "top_k": TopK}
STAGE: Section[Stage] = Section("updates", STAGES, Stage)

__all__ = [
    "STAGE",
    "STAGES",
    "DecodeError",
    "DifferentialPrivacy",
    "Pipeline",
    "Quantise",
    "Stage",
    "StageContext",
    "TopK",
]
