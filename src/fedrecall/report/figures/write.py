"""Figures for papers: PNG, SVG and PDF, readable in grey and by colour-blind readers.

The kinds are those of the paper: matrices (its Figures 3 and 7), forgetting and accuracy over the rounds (4 and
5), class shares (2 and 8) and accuracy against a setting (6).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedrecall.errors import InputError, nearest
from fedrecall.measure.metrics import metric_of
from fedrecall.report.ablation import Ablation, ablations
from fedrecall.report.comparison import Method
from fedrecall.report.curves import curve, measured_metrics
from fedrecall.report.figures.heatmaps import draw_heatmaps, probed_rounds
from fedrecall.report.figures.options import DEFAULT, FONT, Band, FigureOptions, ShownFigure
from fedrecall.report.figures.shares import draw_shares
from fedrecall.report.line_styles import LineStyle
from fedrecall.report.wording import figure_text
from fedrecall.storage.atomic_files import replace_file

FORMATS = ("png", "svg", "pdf")
BANDS: dict[Band, str] = {
    "deviation": "one standard deviation",
    "interval": "its 95 % interval",
    "range": "the range",
}
AXIS_TITLES = {"val_accuracy": "validation accuracy", "test_accuracy": "test accuracy"}
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}


def write_figures(
    methods: list[Method],
    folder: Path,
    rounds: tuple[int, ...] = (),
    names: Sequence[str] | None = None,
    options: FigureOptions = DEFAULT,
) -> list[Path]:
    """Draw all figures, or only those in `names`; `rounds` are those of the matrices (default: last probed)."""
    with rc_context(options.style):
        drawn = figures(options.choose(methods), rounds, options)
        wanted = drawn if names is None else {name: drawn[name] for name in names if name in drawn}
        return [path for name, figure in wanted.items() for path in _saved(figure, folder, name)]


def figures(methods: list[Method], rounds: tuple[int, ...] = (), options: FigureOptions = DEFAULT) -> dict[str, Figure]:
    """Return the figures by file name; raise an `InputError` if one of `rounds` was not probed."""
    known = probed_rounds(methods)
    for wanted in rounds:
        if wanted not in known:
            there = ", ".join(map(str, known)) or "none"
            raise InputError(f"round {wanted} was not probed in these runs; probed rounds: {there}")
    found = {f"forgetting-round-{t:05d}": draw_heatmaps(methods, t, options.inches[0]) for t in rounds or known[-1:]}
    found["class-shares"] = draw_shares(methods)
    for figure in found.values():
        if figure is not None:
            options.resize(figure)
    found["forgetting"] = draw_curves(methods, ("forgetting", "learned"), options)
    found["convergence"] = draw_curves(methods, (accuracy_key(methods),), options)
    found |= {f"accuracy-{ablation.name}": draw_ablation(ablation, options) for ablation in ablations(methods)}
    return {name: figure for name, figure in found.items() if figure is not None}


def accuracy_key(methods: Sequence[Method]) -> str:
    """Return the metric of convergence: accuracy on validation data or, if there are none, on test data."""
    return "val_accuracy" if any(curve(method, "val_accuracy") for method in methods) else "test_accuracy"


def plot(methods: list[Method], metrics: Sequence[str] = (), options: FigureOptions = DEFAULT) -> ShownFigure:
    """Return a figure of metrics over the rounds, by default of the accuracy."""
    shown = options.choose(methods)
    known = measured_metrics(shown)
    for key in metrics:
        if key not in known:
            raise InputError(f"there is no metric {key!r} in these runs; {nearest(key, known)}")
    with rc_context(options.style):
        figure = draw_curves(shown, tuple(metrics) or (accuracy_key(shown),), options)
    if figure is None:
        raise InputError("there is no finished round yet: there is nothing to plot")
    return figure


def _saved(figure: Figure, folder: Path, name: str) -> list[Path]:
    paths = [folder / f"{name}.{kind}" for kind in FORMATS]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_too_small(figure, name)
        for path in paths:
            date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(path.suffix[1:], {})
            with replace_file(path) as beside:
                figure.savefig(beside, metadata=date)
            figure.set_layout_engine("none")  # reuse the layout, which takes most of the time
    except OSError as error:  # about the folder: `replace_file` explains those of files
        raise InputError(f"the figures cannot be written to {str(folder)!r}: {error.strerror}") from None
    return paths


def refuse_too_small(figure: Figure, name: str) -> None:
    """Raise an `InputError` if the letters leave no room for the drawing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*axes sizes collapsed")
        try:
            figure.draw_without_rendering()
        except UserWarning:
            width, height = figure.get_size_inches()
            raise InputError(
                f"the figure {name!r} does not fit into {width:.3g} x {height:.3g} inches; "
                "a larger --size or a smaller --font-size was expected"
            ) from None


def draw_curves(methods: list[Method], keys: tuple[str, ...], options: FigureOptions = DEFAULT) -> ShownFigure | None:
    """Draw metrics over the rounds side by side, a line per method, with a band over the seeds."""
    if not any(curve(method, keys[0]) for method in methods):
        return None
    legend_rows = -(-len(methods) // 2)
    width = 6.4 if len(keys) == 1 else 4.1 * len(keys)
    figure = options.new_figure(width, 3.0 + 0.2 * legend_rows * options.font_size / FONT)
    for axes, key in zip(figure.subplots(1, len(keys), squeeze=False)[0], keys):
        for method in methods:
            _draw_line(axes, method, key, options.band)
        axes.set_xlabel("round")
        axes.set_ylabel(metric_of(key).heading(AXIS_TITLES.get(key, key.replace("_", " "))))
        if key in ("forgetting", "learned"):
            axes.axhline(0, color="black", lw=0.8, zorder=1)
    _legend(figure, options, _band_title(methods, options.band))
    return figure


def _draw_line(axes: Axes, method: Method, key: str, band: Band) -> None:
    found, factor = curve(method, key, band), metric_of(key).factor
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


def _band_title(methods: list[Method], band: Band) -> str:
    counts = sorted({len(method.runs) for method in methods})
    if counts == [1]:
        return ""
    seeds = f"{'/'.join(map(str, counts))} seeds"
    return f"mean over {seeds}" if band == "none" else f"mean, and {BANDS[band]} over {seeds}"


def _legend(figure: Figure, options: FigureOptions, title: str = "") -> None:
    """Draw the legend below, in as many columns as fit."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    if len(names) < 2 and not title:
        return
    # Inches: the line sample, then the letters.
    room = figure.get_figwidth() / ((0.6 + 0.07 * max(map(len, names))) * options.font_size / FONT)
    columns = max(1, min(len(names), int(room), 3))
    figure.legend(handles, names, loc="outside lower center", ncols=columns, title=title or None)


def draw_ablation(ablation: Ablation, options: FigureOptions = DEFAULT) -> Figure:
    """Draw final accuracy against one setting, with a bar over the seeds."""
    figure = options.new_figure(5.2, 3.6)
    axes = figure.subplots()
    for series in ablation.series:
        bars = [series.bar(at, options.band) for at in range(len(series.x))]
        known = [bar for bar in bars if bar is not None]
        axes.errorbar(
            series.x,
            100 * np.array(series.mean),
            yerr=100 * np.array([bar or (0.0, 0.0) for bar in bars]).T if any(map(any, known)) else None,
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
    _legend(figure, options)
    return figure
