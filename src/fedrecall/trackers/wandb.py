"""Weights & Biases."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from fedrecall.trackers.base import TrackedRun, Tracker, TrackerSession


@dataclass(frozen=True)
class WandB(Tracker):
    """A run at Weights & Biases, or in the run's folder while offline; needs the extra `wandb`."""

    project: Annotated[str, "the project that the run belongs to"] = "fedrecall"
    entity: Annotated[str | None, "the user or team; default: as W&B is set up"] = None
    mode: Annotated[Literal["online", "offline"] | None, "online | offline; default: as W&B is set up"] = None
    package: ClassVar[str] = "wandb"
    extra: ClassVar[str] = "wandb"

    def open(self, run: TrackedRun) -> TrackerSession:
        return WandBSession(self, run)


class WandBSession(TrackerSession):
    def __init__(self, tracker: WandB, run: TrackedRun) -> None:
        import wandb

        self.id, self.known = run.id or secrets.token_hex(4), run.rounds_done if run.id else 0
        self._run = wandb.init(
            project=tracker.project,
            entity=tracker.entity,
            mode=tracker.mode,
            id=self.id,
            resume="allow",
            name=run.name,
            dir=run.folder,
            config=dict(run.recipe),
            allow_val_change=True,  # of a run that is made longer
            reinit="create_new",
            # Nothing of this process is captured or recorded but what is logged here.
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )

    def scalars(self, round: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=round)  # W&B leaves out steps before its last one

    def image(self, name: str, round: int, pixels: np.ndarray) -> None:
        import wandb

        self._run.log({name: wandb.Image(pixels)}, step=round)

    def close(self, round: int, summary: Mapping[str, Any], values: Mapping[str, float]) -> None:
        self._run.summary.update({f"summary/{name}": value for name, value in values.items()})
        self._run.summary.update({"status": summary.get("status")})
        self._run.finish(exit_code=0 if summary.get("status") == "finished" else 1)
