"""The trackers by name; to add one, write a module in this package and list its class here."""

from __future__ import annotations

from typing import Any

from fedrecall.config.components import Section
from fedrecall.trackers.base import TrackedRun, Tracker, TrackerSession
from fedrecall.trackers.mlflow import MLflow
from fedrecall.trackers.tensorboard import TensorBoard
from fedrecall.trackers.wandb import WandB

TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
TRACKER: Section[Any] = Section("trackers", TRACKERS)  # other names make watchers, which are more general

__all__ = ["TRACKER", "TRACKERS", "MLflow", "TensorBoard", "TrackedRun", "Tracker", "TrackerSession", "WandB"]
