"""TensorBoard: event files in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from fedrecall.trackers.base import TrackedRun, Tracker, TrackerSession

FOLDER = "tensorboard"  # in the run's folder
SCORES = ("summary/final_accuracy", "summary/forgetting")  # the columns of the HPARAMS page


@dataclass(frozen=True)
class TensorBoard(Tracker):
    """Event files in the run's folder, below `tensorboard`; needs the extra `tensorboard`.

    Rounds that a resumed run makes again replace those that TensorBoard has of them.
    """

    package: ClassVar[str] = "tensorboard"
    extra: ClassVar[str] = "tensorboard"

    def open(self, run: TrackedRun) -> TrackerSession:
        return TensorBoardSession(run)


class TensorBoardSession(TrackerSession):
    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard import summary as protocol

        folder = run.folder / FOLDER
        self.known = run.rounds_done if folder.is_dir() else 0
        purge = self.known + 1 if self.known else None
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge, flush_secs=10)
        self._writer.add_text("recipe", as_markdown(run.recipe))
        hparams, file = cast(Any, protocol.hparams), cast(Any, self._writer.file_writer)
        plain = bool | int | float | str
        shown = {key: value if isinstance(value, plain) else str(value) for key, value in run.settings.items()}
        *begin, self._end = hparams(shown, dict.fromkeys(SCORES))
        for part in begin:
            file.add_summary(part)

    def scalars(self, round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)

    def image(self, name: str, round: int, pixels: np.ndarray) -> None:
        self._writer.add_image(name, pixels, round, dataformats="HWC")

    def close(self, round: int, summary: Mapping[str, Any], values: Mapping[str, float]) -> None:
        self.scalars(round, {f"summary/{name}": value for name, value in values.items()})
        self._writer.add_text("summary", as_markdown(summary), round)
        self._writer.file_writer.add_summary(self._end)
        self._writer.close()


def as_markdown(tree: Mapping[str, Any]) -> str:
    """Return a tree as a block of JSON."""
    return "\n".join(f"    {line}" for line in json.dumps(tree, indent=2, ensure_ascii=False).splitlines())
