"""Trackers as watchers of a run: numbers of each round, figures as images, and ids that survive a resume."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrecall.errors import InputError, short_repr
from fedrecall.measure.watcher import Round, Watcher
from fedrecall.recipe.display_titles import titles
from fedrecall.report.comparison import Method, flatten, group_methods
from fedrecall.runs import files
from fedrecall.runs.jsonl import as_json
from fedrecall.runs.reader import RunRecord, read_tree
from fedrecall.storage.atomic_files import write_text
from fedrecall.storage.safe_parsing import json_value
from fedrecall.trackers import TrackedRun, Tracker, TrackerSession

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Tracking(Watcher):
    """Passes a run's numbers and figures to a tracker."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self._session: TrackerSession | None = None
        self._folder = Path()

    def started(self, recipe: dict[str, Any], folder: Path) -> None:
        lines = RunRecord(folder).metrics
        rounds, place = (lines[-1]["round"] if lines else 0), self.tracker.place()
        known = tracked_ids(folder)
        run = TrackedRun(folder, recipe, flatten(recipe), rounds, known.get(place))
        self._session, self._folder = self.tracker.open(run), folder
        if self._session.id not in (None, known.get(place)):
            write_text(folder / files.TRACKERS, as_json({**known, place: self._session.id}, indent=2) + "\n")
        for line in lines:
            if line["round"] > self._session.known:
                self._session.scalars(line["round"], numbers_in(line))

    def after(self, round: Round) -> None:
        if self._session is None:
            return
        self._session.scalars(round.number, numbers_in(round.line))
        if files.probe_file(self._folder, round.number).exists():
            self._show(self._session, round.number, partial(matrix_figure, round=round.number))

    def finished(self, summary: dict[str, Any]) -> None:
        if self._session is None:
            return
        session, self._session = self._session, None
        done = int(summary.get("rounds_done") or 0)
        if done:
            from fedrecall.report.figures.write import figures

            self._show(session, done, figures)
        session.close(done, summary, numbers_in(summary))

    def _show(
        self, session: TrackerSession, round: int, draw: Callable[[list[Method]], Mapping[str, Figure | None]]
    ) -> None:
        from matplotlib import rc_context

        from fedrecall.report.figures.options import DEFAULT

        with rc_context(DEFAULT.style):
            for name, figure in draw(group_methods([RunRecord(self._folder)], titles())).items():
                if figure is not None and not name.startswith("forgetting-round-"):  # shown after their rounds
                    session.image(f"figures/{name}", round, pixels_of(figure))


def matrix_figure(methods: list[Method], round: int) -> dict[str, Figure | None]:
    """Return the heatmaps of a probed round."""
    from fedrecall.report.figures.heatmaps import draw_heatmaps

    return {"forgetting-matrix": draw_heatmaps(methods, round)}


def as_watchers(given: Sequence[Watcher | Tracker]) -> list[Watcher]:
    """Return trackers as watchers; raise an `InputError` for two that would write to one place."""
    places = [item.place() for item in given if isinstance(item, Tracker)]
    for place in places:
        if places.count(place) > 1:
            raise InputError(f"trackers has {place!r} twice; expected different ones")
    return [Tracking(item) if isinstance(item, Tracker) else item for item in given]


def tracked_ids(folder: Path) -> dict[str, str]:
    """Return the ids of a run at its trackers, by place."""
    path = folder / files.TRACKERS
    found = read_tree(path, json_value) or {}
    for value in found.values():
        if not isinstance(value, str) or not ID.fullmatch(value):
            raise InputError(f"the file {str(path)!r} has {short_repr(value)}; expected the id of a run at a tracker")
    return found


def numbers_in(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a line of metrics or of a summary, without the round's."""
    found = {key: value for key, value in line.items() if type(value) in (int, float) and key != "round"}
    return {key: float(value) for key, value in found.items() if math.isfinite(value)}


def pixels_of(figure: Figure) -> np.ndarray:
    """Return a figure as bytes [height, width, 3]."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
