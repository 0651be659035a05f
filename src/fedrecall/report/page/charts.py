"""The page's charts as plain values for Plotly; page.js adds their style.

Plotly interprets some HTML in texts, so every user text goes through `escape`.
"""

from __future__ import annotations

import html
from typing import Any

import numpy as np

from fedrecall.measure.metrics import metric_of
from fedrecall.report.ablation import Ablation
from fedrecall.report.client_names import client_names, client_title
from fedrecall.report.comparison import Method
from fedrecall.report.curves import Curve, curve, thinned
from fedrecall.report.line_styles import LineStyle
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
from fedrecall.report.wording import count_of, points
from fedrecall.runs.reader import RunRecord, is_number

Figure = dict[str, Any]
MOST_CLIENTS = 12  # in a chart of clients
MOST_NAMED = 200  # clients whose classes are listed
MOST_TICKS = 10  # rounds with a tick each
LOST, GAINED = "#e88a4a", "#3a86c8"  # as in the matrices


def escape(text: object) -> str:
    """Return text with `&`, `<` and `>` escaped."""
    return html.escape(str(text), quote=False)


def json_numbers(values: np.ndarray, digits: int = 5) -> list[float | None]:
    """Return numbers for JSON, with `digits` significant digits; None if not finite."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]


def shown_points(shares: np.ndarray) -> list[float | None]:
    """Return shares in points for JSON, zero where they are shown as 0.0: Plotly would write -0.0."""
    return json_numbers(np.where(np.abs(shares) < 0.0005, 0.0, 100 * shares))


def line_of(look: LineStyle) -> Figure:
    return {"color": look.colour, "dash": look.dash, "width": 2.2}


def metric_figure(methods: list[Method], key: str, title: str) -> Figure | None:
    """Return a metric over the rounds, a line per method, with a band for several seeds.

    None if no method has more than one round of it: single dots show no more than the table.
    """
    found = [(position, method, curve(method, key)) for position, method in enumerate(methods)]
    drawn = [(position, method, thinned(line)) for position, method, line in found if line is not None]
    if not any(len(line.rounds) > 1 for _, _, line in drawn):
        return None
    traces = [trace for position, method, line in drawn for trace in _curve_traces(position, method, line, key)]
    vertical: Figure = {"title": metric_of(key).heading(title)}
    if key in ("forgetting", "learned"):
        vertical["rangemode"] = "tozero"  # the sign matters
    horizontal: Figure = {"title": "round"}
    if max(int(line.rounds[-1]) for _, _, line in drawn) <= MOST_TICKS:
        horizontal["dtick"] = 1  # no ticks between rounds
    return {"data": traces, "layout": {"xaxis": horizontal, "yaxis": vertical}, "curves": True}


def _curve_traces(position: int, method: Method, drawn: Curve, key: str) -> list[Figure]:
    factor, rounds, traces = metric_of(key).factor, drawn.rounds.tolist(), []
    if drawn.low is not None and drawn.high is not None:
        edge = {"x": rounds, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "meta": position}
        traces.append({**edge, "y": json_numbers(factor * drawn.low)})
        filled = {"fill": "tonexty", "fillcolor": f"{method.look.colour}33"}
        traces.append({**edge, "y": json_numbers(factor * drawn.high), **filled})
    line = {
        "x": rounds,
        "y": shown_points(drawn.mean) if factor == 100 else json_numbers(factor * drawn.mean),
        **_trace_style(position, method, len(rounds), marker=6),
        "hovertemplate": number_format(key),
    }
    return [*traces, line]


def _trace_style(position: int, method: Method, count: int, *, marker: int) -> Figure:
    """Return the style of a method's line; lines with few points get markers."""
    return {
        "name": escape(method.label),
        "mode": "lines+markers" if count <= 30 else "lines",
        "line": line_of(method.look),
        "marker": {"size": marker},
        "meta": position,
    }


def number_format(key: str) -> str:
    """Return the d3 format of this metric, followed by its unit."""
    metric = metric_of(key)
    return f"%{{y:{'+' if metric.signed else ''}.1f}} {metric.unit}" if metric.unit else "%{y:.4~g}"


def class_figure(methods: list[Method]) -> Figure | None:
    """Return mean forgetting by class, with a row for clients without the class and one for clients with it."""
    rows, values = [], []
    for method in methods:
        found = by_class(method)
        if found is not None:
            present, absent = found
            name = escape(method.label).replace(", ", ",<br>", 1)  # long lines do not fit on a phone
            rows += [f"{name}<br>absent", f"{name}<br>present"]
            values += [absent, present]
    if not values:
        return None
    names = class_names(next(run for method in methods for run in method.runs if run.probes))
    columns = [name_of(names, c) for c in range(max(map(len, values)))]
    trace = {
        "type": "heatmap",
        "z": [shown_points(row) for row in values],
        "x": [escape(name) for name in unique(columns)],
        "y": rows,
        "coloraxis": "coloraxis",
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "%{y}<br>class: %{x}<br>forgetting: %{z:+.1f} points<extra></extra>",
    }
    layout = {"yaxis": {"autorange": "reversed"}, "xaxis": {"type": "category"}}
    return {
        "data": [trace],
        "layout": layout,
        "scale": "diverging",
        "height": 110 + (44 if ",<br>" in rows[0] else 30) * len(rows),
    }


def unique(names: list[str]) -> list[str]:
    """Return distinct names: Plotly would merge equal categories."""
    return [f"{name} ({place})" if names.count(name) > 1 else name for place, name in enumerate(names)]


def client_figures(method: Method) -> tuple[Figure, Figure] | None:
    """Return charts of the clients that suffer and that cause most forgetting; None without probes."""
    run = probed_run(method)
    if run is None:
        return None
    return _bars(run, who_suffers(run)), _bars(run, who_causes(run))


def _bars(run: RunRecord, clients: Clients) -> Figure:
    ids, values = clients.ids[:MOST_CLIENTS].tolist(), clients.values[:MOST_CLIENTS]
    labels, names = label_sets(run, set(ids)), client_names(run)
    learned = clients.learned[:MOST_CLIENTS]
    details = [
        [escape(labels.get(client, "labels not recorded")), "–" if np.isnan(gain) else f"{points(gain)} points"]  # noqa: RUF001
        for client, gain in zip(ids, learned)
    ]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": shown_points(values),
        "y": [escape(client_title(names, client)) for client in ids],
        "marker": {"color": [LOST if value >= 0 else GAINED for value in values]},
        "customdata": details,
        "hovertemplate": "%{y}<br>forgetting: %{x:+.1f} points<br>learned when it trained: %{customdata[1]}"
        "<br>labels: %{customdata[0]}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": "mean forgetting, points"},
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False},
    }
    return {"data": [trace], "layout": layout, "height": 90 + 24 * len(ids)}


def client_accuracy_figure(methods: list[Method]) -> Figure | None:
    """Return clients' accuracies in the last evaluated round, from worst to best, a line per method."""
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
        names = client_names(run)
        traces.append(
            {
                "x": [100 * (rank + 0.5) / len(pairs) for rank in range(len(pairs))],
                "y": json_numbers(100 * np.array([value for value, _ in pairs])),
                "text": [
                    escape(f"{client_title(names, client)}: {labels.get(client, '')}".rstrip(": "))
                    for _, client in pairs
                ],
                **_trace_style(position, method, len(pairs), marker=5),
                "hovertemplate": "%{y:.1f} % (%{text})",
            }
        )
    if not traces:
        return None
    layout = {
        "xaxis": {"title": "clients from worst to best, %"},
        "yaxis": {"title": "accuracy on its own data, %"},
    }
    return {"data": traces, "layout": layout, "curves": True, "closest": True}


def share_figure(run: RunRecord) -> Figure | None:
    """Return the class shares of some clients, a row per client; None without class counts."""
    if run.class_counts is None or not len(run.class_counts):
        return None
    counts, names = run.class_counts, class_names(run)
    chosen = np.unique(np.linspace(0, len(counts) - 1, min(len(counts), MOST_CLIENTS)).round().astype(int))
    shares = counts[chosen] / np.maximum(counts[chosen].sum(axis=1, keepdims=True), 1)
    trace = {
        "type": "heatmap",
        "z": [json_numbers(100 * row, 3) for row in shares],
        "x": [escape(name) for name in unique([name_of(names, c) for c in range(counts.shape[1])])],
        "y": [escape(client_title(client_names(run), int(client))) for client in chosen],
        "customdata": [[escape(label_set(row, names))] * counts.shape[1] for row in counts[chosen]],
        "coloraxis": "coloraxis",
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "%{y}<br>%{x}: %{z:.1f} %<br>has %{customdata}<extra></extra>",
    }
    layout = {"yaxis": {"autorange": "reversed", "type": "category"}, "xaxis": {"type": "category"}}
    shown, total = len(chosen), count_of(len(counts), "client")
    caption = f"The classes of {total}" if shown == len(counts) else f"The classes of {shown} of {total}"
    return {
        "data": [trace],
        "layout": layout,
        "scale": "shares",
        "height": 110 + 24 * shown,
        "caption": f"{caption}, in % of the client's training samples.",
    }


def ablation_figure(ablation: Ablation) -> Figure:
    """Return final accuracy against one setting."""
    traces = []
    for series in ablation.series:
        spread = [deviation or 0 for deviation in series.sd]
        traces.append(
            {
                "x": series.x,
                "y": json_numbers(100 * np.array(series.mean)),
                "error_y": {"type": "data", "array": json_numbers(100 * np.array(spread)), "visible": any(spread)},
                "name": escape(series.label),
                "mode": "lines+markers",
                "line": line_of(series.method.look),
                "marker": {"size": 8},
                "customdata": series.seeds,
                "hovertemplate": "%{y:.1f} % (seeds: %{customdata})",
            }
        )
    axis: Figure = {"title": ablation.title, "type": "log" if ablation.logarithmic else "linear"}
    if ablation.logarithmic:
        ticks = sorted({x for series in ablation.series for x in series.x})
        axis |= {"tickvals": ticks, "ticktext": [f"{x:g}" for x in ticks]}
    return {"data": traces, "layout": {"xaxis": axis, "yaxis": {"title": "final accuracy, %"}, "showlegend": True}}
