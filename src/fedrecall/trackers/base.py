"""Base classes of trackers, which show the course of a run in a program of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedrecall.errors import InputError


@dataclass(frozen=True)
class TrackedRun:
    """A run as its trackers are told of it when it begins or is resumed."""

    folder: Path
    recipe: Mapping[str, Any]  # every key
    settings: Mapping[str, Any]  # the same with dotted keys: {"local.lr": 0.1, ..}
    rounds_done: int  # 0 for a new run
    id: str | None = None  # what the tracker has called this run, if it is resumed

    @property
    def name(self) -> str:
        return self.folder.resolve().name


class TrackerSession:
    """A tracker that is at work on one run."""

    id: str | None = None  # the name under which a resumed run is found again
    known: int = 0  # the last round that the tracker has; those after it are told when the run is resumed

    def scalars(self, round: int, values: Mapping[str, float]) -> None:
        """Called with the numbers of each round's line of metrics."""

    def image(self, name: str, round: int, pixels: np.ndarray) -> None:
        """Called with each figure, as bytes [height, width, 3]."""

    def close(self, round: int, summary: Mapping[str, Any], values: Mapping[str, float]) -> None:
        """Called when the run has ended; `values` are the numbers of the summary."""


class Tracker:
    """Names a place where runs are shown; `open` begins to write there. Nothing of it changes a run.

    Numbers and figures are prepared for it; a `Watcher` is the more general way to look at rounds.
    """

    recipe_section: ClassVar[str] = "trackers"
    package: ClassVar[str] = ""  # the module that must be there
    extra: ClassVar[str] = ""  # the extra of fedrecall that installs it

    def check(self) -> None:
        """Raise an `InputError` if the tracker's package is not installed."""
        if self.package and find_spec(self.package) is None:
            raise InputError(
                f"trackers is {self.extra!r}, which needs the package {self.package}; install it with: "
                f"pip install 'fedrecall[{self.extra}]'"
            )

    def place(self) -> str:
        """Return a name for the place where runs are kept; two trackers of one run need different ones."""
        return type(self).__name__.lower()

    def open(self, run: TrackedRun) -> TrackerSession:
        """Begin to track a run, or go on with one that has an id."""
        raise NotImplementedError
