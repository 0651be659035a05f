"""The page's charts as Plotly's figures, in plain values: what is drawn. How it looks is in page.js.

Plotly reads a little HTML in its texts, so every text of a user's goes through `shown`.
"""

from __future__ import annotations

import html
from typing import Any

import numpy as np

from fedrecall.report.ablation import Ablation
from fedrecall.report.comparison import Method
from fedrecall.report.curves import COLOURS, curve, look, thin
from fedrecall.report.probe_views import (
    Clients,
    by_class,
    class_names,
    label_set,
    label_sets,
    name_of,
    probed_run,
    who_causes,
    who_suffers,
)
from fedrecall.runs.reader import RunRecord, is_number

Figure = dict[str, Any]
MOST_CLIENTS = 12  # in a picture of them
MOST_NAMED = 200  # whose classes are told


def escape(text: object) -> str:
    """As text, whatever it looks like."""
    return html.escape(str(text), quote=False)


def plain(values: np.ndarray, digits: int = 5) -> list[float | None]:
    """Numbers for JSON, with as many digits as a reader sees."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]


def metric_figure(methods: list[Method], key: str, title: str) -> Figure | None:
    """A metric over the rounds, a line for each method and a band where it has several seeds."""
    traces: list[Figure] = []
    for position, method in enumerate(methods):
        found = curve(method, key)
        if found is None:
            continue
        drawn, (colour, dash) = thin(found), look(position, method)
        rounds = drawn.rounds.tolist()
        if drawn.low is not None and drawn.high is not None:
            edge = {"x": rounds, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "meta": position}
            traces.append({**edge, "y": plain(drawn.low)})
            traces.append({**edge, "y": plain(drawn.high), "fill": "tonexty", "fillcolor": f"{colour}33"})
        traces.append(
            {
                "x": rounds,
                "y": plain(drawn.mean),
                "name": escape(method.label),
                "mode": "lines+markers" if len(rounds) <= 30 else "lines",
                "line": {"color": colour, "dash": dash, "width": 2.2},
                "marker": {"size": 6},
                "meta": position,
                "hovertemplate": "%{y:.4~g}",
            }
        )
    if not traces:
        return None
    vertical: Figure = {"title": title}
    if key in ("forgetting", "learned"):
        vertical["rangemode"] = "tozero"  # its sign is what matters
    return {"data": traces, "layout": {"xaxis": {"title": "round"}, "yaxis": vertical}, "curves": True}


def class_figure(methods: list[Method]) -> Figure | None:
    """Mean forgetting of each class, at clients that do not have it and at clients that do; a row each."""
    rows, values = [], []
    for method in methods:
        found = by_class(method)
        if found is not None:
            present, absent = found
            name = escape(method.label).replace(", ", ",<br>", 1)  # a phone has no room for long lines
            rows += [f"{name}<br>absent", f"{name}<br>present"]
            values += [absent, present]
    if not values:
        return None
    names = class_names(next(run for method in methods for run in method.runs if run.probes))
    columns = [name_of(names, c) for c in range(max(map(len, values)))]
    trace = {
        "type": "heatmap",
        "z": [plain(row, 4) for row in values],
        "x": [escape(name) for name in unique(columns)],
        "y": rows,
        "coloraxis": "coloraxis",
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "%{y}<br>class: %{x}<br>forgetting: %{z:+.3f}<extra></extra>",
    }
    layout = {"yaxis": {"autorange": "reversed"}, "xaxis": {"type": "category"}}
    return {
        "data": [trace],
        "layout": layout,
        "scale": "diverging",
        "height": 110 + (44 if ",<br>" in rows[0] else 30) * len(rows),
    }


def unique(names: list[str]) -> list[str]:
    """Categories of one name would fall together."""
    return [f"{name} ({place})" if names.count(name) > 1 else name for place, name in enumerate(names)]


def client_figures(method: Method) -> tuple[Figure, Figure] | None:
    """Who suffers most and who causes most, over a run's probes."""
    run = probed_run(method)
    if run is None:
        return None
    return _bars(run, who_suffers(run)), _bars(run, who_causes(run))


def _bars(run: RunRecord, clients: Clients) -> Figure:
    ids, values = clients.ids[:MOST_CLIENTS].tolist(), clients.values[:MOST_CLIENTS]
    labels = label_sets(run, set(ids))
    learned = clients.learned[:MOST_CLIENTS]
    details = [
        [escape(labels.get(client, "labels not recorded")), "–" if np.isnan(gain) else f"{gain:+.3f}"]  # noqa: RUF001
        for client, gain in zip(ids, learned)
    ]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": plain(values, 4),
        "y": [f"client {client}" for client in ids],
        "marker": {"color": [COLOURS[0] if value >= 0 else COLOURS[1] for value in values]},
        "customdata": details,
        "hovertemplate": "%{y}<br>forgetting: %{x:+.3f}<br>learned when it trained: %{customdata[1]}"
        "<br>labels: %{customdata[0]}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": "mean forgetting"},
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False},
    }
    return {"data": [trace], "layout": layout, "height": 90 + 24 * len(ids)}


def client_accuracy_figure(methods: list[Method]) -> Figure | None:
    """The clients' accuracies at the last evaluated round, from the worst to the best, a line for each method."""
    traces = []
    for position, method in enumerate(methods):
        run = next((run for run in method.runs if run.clients), None)
        if run is None:
            continue
        last = run.clients[-1]
        pairs = sorted(
            (value, client) for client, value in zip(last["client"], last["val_accuracy"]) if is_number(value)
        )
        labels = label_sets(run, {client for _, client in pairs[:MOST_NAMED]})
        colour, dash = look(position, method)
        traces.append(
            {
                "x": [100 * (rank + 0.5) / len(pairs) for rank in range(len(pairs))],
                "y": plain(np.array([value for value, _ in pairs])),
                "text": [f"client {client}: {escape(labels.get(client, ''))}".rstrip(": ") for _, client in pairs],
                "name": escape(method.label),
                "mode": "lines+markers" if len(pairs) <= 30 else "lines",
                "line": {"color": colour, "dash": dash, "width": 2.2},
                "marker": {"size": 5},
                "meta": position,
                "hovertemplate": "%{y:.3f} (%{text})",
            }
        )
    if not traces:
        return None
    layout = {"xaxis": {"title": "clients from worst to best, %"}, "yaxis": {"title": "accuracy on its own data"}}
    return {"data": traces, "layout": layout, "curves": True, "closest": True}


def share_figure(run: RunRecord) -> Figure | None:
    """Which classes some clients have: a row a client."""
    if run.class_counts is None or not len(run.class_counts):
        return None
    counts, names = run.class_counts, class_names(run)
    chosen = np.unique(np.linspace(0, len(counts) - 1, min(len(counts), MOST_CLIENTS)).round().astype(int))
    shares = counts[chosen] / np.maximum(counts[chosen].sum(axis=1, keepdims=True), 1)
    trace = {
        "type": "heatmap",
        "z": [plain(row, 3) for row in shares],
        "x": [escape(name) for name in unique([name_of(names, c) for c in range(counts.shape[1])])],
        "y": [f"client {client}" for client in chosen],
        "customdata": [[escape(label_set(row, names))] * counts.shape[1] for row in counts[chosen]],
        "coloraxis": "coloraxis",
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "%{y}<br>%{x}: %{z:.1%}<br>has %{customdata}<extra></extra>",
    }
    layout = {"yaxis": {"autorange": "reversed", "type": "category"}, "xaxis": {"type": "category"}}
    return {"data": [trace], "layout": layout, "scale": "shares", "height": 110 + 24 * len(chosen)}


def ablation_figure(ablation: Ablation) -> Figure:
    """Final accuracy against one setting."""
    traces = []
    for position, series in enumerate(ablation.series):
        colour, dash = look(position, series.method)
        spread = [deviation or 0 for deviation in series.sd]
        traces.append(
            {
                "x": series.x,
                "y": plain(np.array(series.mean)),
                "error_y": {"type": "data", "array": plain(np.array(spread)), "visible": any(spread)},
                "name": escape(series.label),
                "mode": "lines+markers",
                "line": {"color": colour, "dash": dash, "width": 2.2},
                "marker": {"size": 8},
                "customdata": series.seeds,
                "hovertemplate": "%{y:.4~g} (seeds: %{customdata})",
            }
        )
    axis: Figure = {"title": ablation.title, "type": "log" if ablation.logarithmic else "linear"}
    if ablation.logarithmic:
        ticks = sorted({x for series in ablation.series for x in series.x})
        axis |= {"tickvals": ticks, "ticktext": [f"{x:g}" for x in ticks]}
    return {"data": traces, "layout": {"xaxis": axis, "yaxis": {"title": "final accuracy"}, "showlegend": True}}
