"""Picture of a partition: class shares of the training samples of some clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from fedrecall.errors import InputError
from fedrecall.report.client_names import short_client_name
from fedrecall.report.wording import figure_text
from fedrecall.storage.atomic_files import explain_write_errors

# Paul Tol's "muted" scheme and the grey of his "bright" one, which colour-blind readers can tell apart.
TEN_COLOURS = (
    *("#332288", "#88CCEE", "#44AA99", "#117733", "#999933"),
    *("#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB"),
)
MOST_WITHOUT_CHOOSING = 20
FORMATS = (".png", ".svg", ".pdf")


def draw_partition(
    counts: NDArray[np.integer[Any]],
    class_names: Sequence[str] | None,
    path: Path,
    title: str,
    most: int = 10,
    seed: int = 0,
    client_names: Sequence[str] = (),
) -> None:
    """Draw `counts` [clients, classes] to `path`: png, svg or pdf by its suffix.

    Up to 20 clients are all drawn; of more, a random sample of `most`, seeded by `seed`.
    """
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"the picture's name is {path.name}; it must end in {', '.join(FORMATS)}")
    shown = chosen_clients(len(counts), most, seed)
    names = [figure_text(name) for name in class_names or map(str, range(counts.shape[1]))]
    figure = Figure(figsize=(7.2, 1.2 + 0.26 * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    colours = class_colours(len(names))
    for place, client in enumerate(shown):
        _draw_bar(axes, place, counts[client], colours)
    _label_axes(axes, shown, len(counts), title)
    axes.set_yticks(np.arange(len(shown)), client_ticks(client_names, shown.tolist()))
    if len(names) <= len(TEN_COLOURS):
        handles = [Patch(facecolor=colour) for colour in colours]
        figure.legend(handles, names, loc="outside right upper", title="class", frameon=False)
    else:
        _draw_colour_bar(figure, axes, colours, names)
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def client_ticks(names: Sequence[str], clients: Sequence[int]) -> list[str]:
    """Return the clients' names for an axis, or their numbers where they have none."""
    return [figure_text(short_client_name(names, client)) for client in clients]


def chosen_clients(clients: int, most: int, seed: int = 0) -> NDArray[np.int64]:
    if clients <= max(most, MOST_WITHOUT_CHOOSING):
        return np.arange(clients)
    return np.sort(np.random.default_rng(seed).choice(clients, most, replace=False))


def class_colours(classes: int) -> list[Any]:
    if classes <= len(TEN_COLOURS):
        return list(TEN_COLOURS[:classes])
    return list(colormaps["viridis"](np.linspace(0, 1, classes)))


def spans(counts: NDArray[np.integer[Any]]) -> list[tuple[int, float, float]]:
    """Return the bar of one client: the index, start and width of each class that it has."""
    present = np.flatnonzero(counts)
    widths = counts[present] / max(counts.sum(), 1)
    return list(zip(present.tolist(), (np.cumsum(widths) - widths).tolist(), widths.tolist()))


def _draw_bar(axes: Axes, place: int, counts: NDArray[np.integer[Any]], colours: list[Any]) -> None:
    parts = spans(counts)
    axes.broken_barh(
        [(start, width) for _, start, width in parts],
        (place - 0.4, 0.8),
        facecolors=[colours[c] for c, _, _ in parts],
        edgecolors="white",
        linewidth=0.6 if len(colours) <= len(TEN_COLOURS) else 0.2,  # wide edges would cover thin bars
    )


def _label_axes(axes: Axes, shown: NDArray[np.int64], clients: int, title: str) -> None:
    axes.set_title(figure_text(title), loc="left")
    axes.set_xlabel("share of the client's training samples, %")
    axes.xaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    axes.set_ylabel("client" if len(shown) == clients else f"client ({len(shown)} of {clients:,})")
    axes.set_xlim(0, 1)
    axes.set_ylim(len(shown) - 0.4, -0.6)  # the first client on top
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_colour_bar(figure: Figure, axes: Axes, colours: list[Any], names: list[str]) -> None:
    classes = len(names)
    norm = BoundaryNorm(np.arange(classes + 1) - 0.5, classes)
    bar = figure.colorbar(ScalarMappable(norm, ListedColormap(colours)), ax=axes, label="class", aspect=30)
    ticks = np.unique(np.linspace(0, classes - 1, min(classes, 8)).round().astype(int))
    bar.set_ticks(ticks.tolist(), labels=[names[tick] for tick in ticks])
    bar.ax.minorticks_off()
    bar.ax.invert_yaxis()
