"""Figure of a round's matrices: forgetting, and accuracy after training, for each method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedrecall.measure.forgetting import own_pairs
from fedrecall.report.client_names import client_names
from fedrecall.report.comparison import Method
from fedrecall.report.figures.partition_picture import client_ticks
from fedrecall.report.probe_views import ProbeArrays, matrix_of, participants_first
from fedrecall.report.wording import MINUS, figure_text
from fedrecall.runs.reader import RunRecord

# Blue for gains, orange for losses. Losses get much darker, and cells that gain carry a dot, so that the sign is
# readable in grey.
DIVERGING = LinearSegmentedColormap.from_list("forgetting", ["#3a86c8", "#9cc7e8", "#ffffff", "#e88a4a", "#6b2000"])
SEQUENTIAL = "cividis"
WIDTH = 8.2  # inches
MOST_LABELS = 20  # of columns and rows, in a figure of that width
MOST_COLUMNS = 40  # with more clients, only the round's own are drawn


def probed_rounds(methods: list[Method]) -> list[int]:
    """Return the rounds that any method has probed; those that all probed methods share are last."""
    sets = [set().union(*(run.probes for run in method.runs)) for method in methods]
    sets = [rounds for rounds in sets if rounds]
    common = set.intersection(*sets) if sets else set()
    return sorted(set().union(*sets) - common) + sorted(common)


def draw_heatmaps(methods: list[Method], round: int, width: float | None = None) -> Figure | None:
    """Draw F[i, k] and the accuracy after training in one round, on one colour scale for all methods."""
    shown = [(method, run, _columns(run.probes[round])) for method in methods for run in _probed(method, round)]
    if not shown:
        return None
    end = 100 * max(0.1, *(float(np.nanmax(np.abs(matrix_of(probe)), initial=0)) for *_, probe in shown))
    heights = [max(0.8, 0.19 * len(probe["models"])) for *_, probe in shown]
    height = sum(heights) + 0.75 * len(shown) + 0.8
    wide = width or WIDTH
    labels = max(3, int(MOST_LABELS * wide / WIDTH))  # letters do not shrink with the figure
    end_of_line = " " if wide > WIDTH / 2 else "\n"
    figure = Figure(figsize=(wide, height), layout="constrained")
    grid = figure.subplots(len(shown), 2, squeeze=False, gridspec_kw={"height_ratios": heights})
    for (method, run, probe), (left, right) in zip(shown, grid):
        lost = left.imshow(100 * matrix_of(probe), cmap=DIVERGING, norm=Normalize(-end, end), aspect="auto")
        kept = right.imshow(100 * probe["after"], cmap=SEQUENTIAL, norm=Normalize(0, 100), aspect="auto")
        _mark_gains(left, matrix_of(probe))
        for axes, colour in ((left, "black"), (right, "white")):
            _frame_own(axes, probe, colour)
            _label(axes, probe, client_names(run), labels)
        left.set_title(figure_text(method.label), loc="left")
        left.set_ylabel("model of client $i$")
    for axes, title in zip(grid[-1], ("data of client $k$", "data of client $k$")):
        axes.set_xlabel(title)
    thin: dict[str, Any] = {"location": "bottom", "aspect": 40, "fraction": 0.3 / height, "pad": 0.1 / height}
    bar = figure.colorbar(lost, ax=grid[:, 0], label=f"forgetting $F_{{ik}}$, points{end_of_line}(dots: gains)", **thin)
    bar.set_ticks([-end, 0, end], labels=[f"{MINUS}{end:.3g}", "0", f"+{end:.3g}"])
    bar.ax.axvline(0, color="black", lw=1.2)
    figure.colorbar(kept, ax=grid[:, 1], label=f"accuracy{end_of_line}after training, %", **thin)
    figure.suptitle(f"round {round}", fontsize=10)
    return figure


def _probed(method: Method, round: int) -> list[RunRecord]:
    """Return the first run that was probed in this round, as a list of at most one."""
    return [run for run in method.runs if round in run.probes][:1]


def _columns(probe: ProbeArrays) -> ProbeArrays:
    """Return the probe with the round's own clients first; with many clients and several models, only these."""
    order = participants_first(probe)
    if len(order) > MOST_COLUMNS:
        order = order[: int(np.isin(probe["models"], probe["data"]).sum())] if len(probe["models"]) > 1 else order
    return {
        "models": probe["models"],
        "data": probe["data"][order],
        "before": probe["before"][order],
        "after": probe["after"][:, order],
    }


def _mark_gains(axes: Axes, matrix: np.ndarray) -> None:
    rows, columns = np.nonzero(matrix < -1e-9)
    size = np.clip(120 / max(matrix.shape), 0.5, 9)
    axes.scatter(columns, rows, s=size, marker=".", color="black", linewidths=0)


def _frame_own(axes: Axes, probe: ProbeArrays, colour: str) -> None:
    for row, column in zip(*np.nonzero(own_pairs(probe["after"], probe["models"], probe["data"]))):
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, ec=colour, lw=1.1))


def _label(axes: Axes, probe: ProbeArrays, names: Sequence[str], most: int) -> None:
    axes.grid(False)
    rows, columns = len(probe["models"]), len(probe["data"])
    every, every_row = -(-columns // most), -(-rows // MOST_LABELS)
    below, left = (
        client_ticks(names, clients.tolist()) for clients in (probe["data"][::every], probe["models"][::every_row])
    )
    axes.set_xticks(np.arange(0, columns, every), below, fontsize=7, rotation=90 if names else 0)
    axes.set_yticks(np.arange(0, rows, every_row), left, fontsize=7)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
