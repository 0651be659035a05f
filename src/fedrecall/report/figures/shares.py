"""Class shares of ten clients, with a panel for each alpha among the runs."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from fedrecall.report.client_names import client_names
from fedrecall.report.comparison import Method
from fedrecall.report.figures.partition_picture import TEN_COLOURS, class_colours, client_ticks, spans
from fedrecall.report.probe_views import class_names, name_of
from fedrecall.report.wording import figure_text, number, value_text
from fedrecall.runs.reader import RunRecord

CLIENTS = 10
MOST_PANELS = 6
# Neighbouring classes also differ in their hatches, which are visible in grey.
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx")


def draw_shares(methods: list[Method]) -> Figure | None:
    """Draw the class shares; return None if no run has class counts."""
    panels: dict[str, RunRecord] = {}
    for method in methods:
        for run in method.runs:
            if run.class_counts is not None:
                panels.setdefault(_title(run), run)
    if not panels:
        return None
    shown = dict(sorted(panels.items(), key=lambda item: item[1].recipe["partition"].get("alpha", 0)))
    shown = dict(list(shown.items())[:MOST_PANELS])
    first = next(iter(shown.values()))
    classes = max(run.class_counts.shape[1] for run in shown.values() if run.class_counts is not None)
    colours, few = class_colours(classes), classes <= len(TEN_COLOURS)
    hatches = [HATCHES[c % len(HATCHES)] if few else "" for c in range(classes)]
    figure = Figure(figsize=(1.6 + 2.3 * len(shown), 3.6), layout="constrained")
    for axes, (title, run) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items()):
        assert run.class_counts is not None
        count = len(run.class_counts)
        ids = np.sort(np.random.default_rng(0).choice(count, min(count, CLIENTS), replace=False))
        for place, client in enumerate(ids):
            for c, start, width in spans(run.class_counts[client]):
                axes.barh(place, width, 0.8, left=start, color=colours[c], hatch=hatches[c], edgecolor="white", lw=0.5)
        axes.set_title(figure_text(title))
        axes.set_yticks(np.arange(len(ids)), client_ticks(client_names(run), ids.tolist()))
        axes.set_xlim(0, 1)
        axes.set_ylim(len(ids) - 0.4, -0.6)
        axes.grid(False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("share, %")
        axes.xaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    figure.axes[0].set_ylabel("client")
    if few:
        names = class_names(first)
        handles = [Patch(facecolor=colours[c], hatch=hatches[c], edgecolor="white") for c in range(classes)]
        named = [figure_text(name_of(names, c)) for c in range(classes)]
        figure.legend(handles, named, loc="outside right upper", title="class")
    return figure


def _title(run: RunRecord) -> str:
    partition = run.recipe["partition"]
    alpha = partition.get("alpha")
    return f"alpha {number(alpha)}" if alpha is not None else value_text(partition["name"])
