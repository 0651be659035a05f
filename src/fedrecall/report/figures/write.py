"""Figures for papers: PNG, SVG and PDF, readable in grey and by colour-blind readers.

The kinds are those of the paper: matrices (its Figures 3 and 7), forgetting and accuracy over the rounds (4 and
5), class shares (2 and 8) and accuracy against a setting (6).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedrecall.errors import InputError
from fedrecall.measure.metrics import metric_of
from fedrecall.report.ablation import Ablation, ablations
from fedrecall.report.comparison import Method
from fedrecall.report.curves import curve
from fedrecall.report.figures.heatmaps import draw_heatmaps, probed_rounds
from fedrecall.report.figures.shares import draw_shares
from fedrecall.report.line_styles import LineStyle
from fedrecall.report.wording import figure_text
from fedrecall.storage.atomic_files import replace_file

FORMATS = ("png", "svg", "pdf")
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.fonttype": "none",  # keep text as text
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
    "svg.hashsalt": "fedrecall",  # equal runs give equal files
}


def write_figures(
    methods: list[Method], folder: Path, rounds: tuple[int, ...] = (), names: Sequence[str] | None = None
) -> list[Path]:
    """Draw all figures, or only those in `names`; `rounds` are those of the matrices (default: last probed)."""
    with rc_context(STYLE):
        drawn = figures(methods, rounds)
        wanted = drawn if names is None else {name: drawn[name] for name in names if name in drawn}
        return [path for name, figure in wanted.items() for path in _saved(figure, folder, name)]


def figures(methods: list[Method], rounds: tuple[int, ...] = ()) -> dict[str, Figure]:
    """Return the figures by file name; raise an `InputError` if one of `rounds` was not probed."""
    known = probed_rounds(methods)
    for wanted in rounds:
        if wanted not in known:
            there = ", ".join(map(str, known)) or "none"
            raise InputError(f"round {wanted} was not probed in these runs; probed rounds: {there}")
    found = {f"forgetting-round-{t:05d}": draw_heatmaps(methods, t) for t in rounds or known[-1:]}
    found["forgetting"] = draw_curves(methods, ("forgetting", "learned"), ("forgetting", "learned"))
    accuracy = "val_accuracy" if any(curve(method, "val_accuracy") for method in methods) else "test_accuracy"
    words = {"val_accuracy": "accuracy on validation data", "test_accuracy": "test accuracy"}
    found["convergence"] = draw_curves(methods, (accuracy,), (words[accuracy],))
    found["class-shares"] = draw_shares(methods)
    found |= {f"accuracy-{ablation.name}": draw_ablation(ablation) for ablation in ablations(methods)}
    return {name: figure for name, figure in found.items() if figure is not None}


def _saved(figure: Figure, folder: Path, name: str) -> list[Path]:
    paths = [folder / f"{name}.{kind}" for kind in FORMATS]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(path.suffix[1:], {})
            with replace_file(path) as beside:
                figure.savefig(beside, metadata=date)
            figure.set_layout_engine("none")  # reuse the layout, which takes most of the time
    except OSError as error:  # about the folder: `replace_file` explains those of files
        raise InputError(f"the figures cannot be written to {str(folder)!r}: {error.strerror}") from None
    return paths


def draw_curves(methods: list[Method], keys: tuple[str, ...], titles: tuple[str, ...]) -> Figure | None:
    """Draw metrics over the rounds side by side, a line per method, with a band of one standard deviation."""
    if not any(curve(method, keys[0]) for method in methods):
        return None
    legend_rows = -(-len(methods) // 2)
    figure = Figure(figsize=(6.4 if len(keys) == 1 else 8.2, 3.0 + 0.2 * legend_rows), layout="constrained")
    for axes, key, title in zip(figure.subplots(1, len(keys), squeeze=False)[0], keys, titles):
        for method in methods:
            _draw_line(axes, method, key)
        axes.set_xlabel("round")
        axes.set_ylabel(metric_of(key).heading(title))
        if key in ("forgetting", "learned"):
            axes.axhline(0, color="black", lw=0.8, zorder=1)
    _legend(figure, _band(methods))
    return figure


def _draw_line(axes: Axes, method: Method, key: str) -> None:
    found, factor = curve(method, key), metric_of(key).factor
    if found is None:
        return
    look = method.look
    if found.low is not None and found.high is not None:
        low, high = factor * found.low, factor * found.high
        axes.fill_between(found.rounds, low, high, color=look.colour, alpha=0.18, lw=0)
    axes.plot(
        found.rounds,
        factor * found.mean,
        **_line_style(look, method.label),
        markersize=4,
        markevery=max(1, len(found.rounds) // 10),
    )


def _line_style(look: LineStyle, label: str) -> dict[str, Any]:
    return {
        "label": figure_text(label),
        "color": look.colour,
        "ls": DASHES[look.dash],
        "lw": 1.6,
        "marker": look.marker,
        "markerfacecolor": "white" if look.hollow else look.colour,
    }


def _band(methods: list[Method]) -> str:
    counts = sorted({len(method.runs) for method in methods})
    return f"mean, and one standard deviation over {'/'.join(map(str, counts))} seeds" if counts != [1] else ""


def _legend(figure: Figure, title: str = "") -> None:
    """Draw the legend below, in as many columns as fit."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    if len(names) < 2 and not title:
        return
    room = figure.get_figwidth() / (0.6 + 0.07 * max(map(len, names)))  # inches: the line sample, then the letters
    columns = max(1, min(len(names), int(room), 3))
    figure.legend(handles, names, loc="outside lower center", ncols=columns, title=title or None)


def draw_ablation(ablation: Ablation) -> Figure:
    """Draw final accuracy against one setting, with one standard deviation over seeds."""
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.subplots()
    for series in ablation.series:
        axes.errorbar(
            series.x,
            100 * np.array(series.mean),
            yerr=[100 * (deviation or 0) for deviation in series.sd] if any(series.sd) else None,
            **_line_style(series.method.look, series.label),
            markersize=5,
            capsize=3,
        )
    if ablation.logarithmic:
        axes.set_xscale("log")
        ticks = sorted({x for series in ablation.series for x in series.x})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.tick_params(axis="x", which="minor", bottom=False)
    axes.set_xlabel(ablation.title)
    axes.set_ylabel("final accuracy, %")
    if np.ptp([x for series in ablation.series for x in series.mean]) < 1e-3:
        axes.margins(y=0.5)  # do not magnify a difference in the fourth digit
    _legend(figure)
    return figure
