"""Output of the commands: results, tables and bars."""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedrecall.cli.options import print_escaped
from fedrecall.display import printable
from fedrecall.report.client_names import client_title
from fedrecall.report.prior_remarks import balanced, prior_remark
from fedrecall.report.text_table import TextTable

COLOURS = [
    "#4477AA",
    "#EE6677",
    "#228833",
    "#CCBB44",
    "#66CCEE",
    "#AA3377",
    "#BBBBBB",
    "#EE7733",
    "#009988",
    "#994455",
]
SYMBOLS = string.digits + string.ascii_lowercase + string.ascii_uppercase
BAR_WIDTH = 50
MOST_CLIENTS = 20


def show_results(summaries: Mapping[str, Mapping[str, Any]], report: Path | None, *, as_json: bool) -> None:
    """Print a table, the notes and the report's path if there is a report, or everything as JSON."""
    if as_json:
        click.echo(json.dumps({"report": None if report is None else str(report), "runs": summaries}))
        return
    Console().print(summary_table(summaries))
    about: dict[str, list[str]] = {}
    for name, summary in summaries.items():
        for warning in summary["warnings"]:
            about.setdefault(warning, []).append(name)
    for warning, names in about.items():
        print_escaped(f"note: {', '.join(names)}: {warning}" if len(summaries) > 1 else f"note: {warning}")
    for advice in dict.fromkeys(summary["advice"] for summary in summaries.values() if summary.get("advice")):
        print_escaped(f"note: {advice}")
    engines = dict.fromkeys(engine_of(summary) for summary in summaries.values())
    print_escaped(f"engine (workers): {', '.join(engines)}")
    if report is not None:
        print_escaped(str(report))


def engine_of(summary: Mapping[str, Any]) -> str:
    device = summary.get("device", "cpu")
    return f"{summary['engine']} ({summary['workers']})" + ("" if device == "cpu" else f" on {device}")


def summary_table(summaries: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table of results with one line per run."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("method")
    both = not balanced(summaries.values())
    personal = any("personal_accuracy" in summary for summary in summaries.values())
    wanted = {"final accuracy": True, "by class": both, "personal": personal, "forgetting": True, "learned": True}
    for title in [*(title for title, shown in wanted.items() if shown), "seconds"]:
        table.add_column(title, justify="right")
    for name, summary in summaries.items():
        by_class = [format_number(summary["final_accuracy_macro"])] if both else []
        by_class += [format_number(summary.get("personal_accuracy"))] if personal else []
        table.add_row(
            Text(printable(name)),
            format_number(summary["final_accuracy"]),
            *by_class,
            format_number(summary["forgetting"], signed=True),
            format_number(summary["learned"], signed=True),
            f"{summary['seconds']:.1f}",
        )
    tested = [summary for summary in summaries.values() if summary["final_accuracy"] is not None]
    meanings = dict.fromkeys(map(final_accuracy, tested))
    if meanings:
        words = [f"final accuracy: {'; '.join(meanings)}"]
        if both:
            words.append(prior_remark({name: summary["meant_for"] for name, summary in summaries.items()}))
        table.caption = "\n".join(words)
        table.caption_justify = "left"
    return table


def show_table(table: TextTable) -> None:
    """Print a table and its notes. If the terminal is too narrow, each row takes several lines."""
    lines = [[printable(text) for text in texts] for texts in (table.heading, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    console, gap = Console(), "   "
    if console.is_terminal and sum(widths) + len(gap) * (len(widths) - 1) > console.width:
        for row in lines[1:]:
            pairs = [f"{title}: {text}" for title, text in zip(lines[0], row)]
            print_escaped("\n  ".join(pairs))
    else:
        for number, line in enumerate(lines):
            cells = [
                text.ljust(width) if place < table.words else text.rjust(width)
                for place, (text, width) in enumerate(zip(line, widths))
            ]
            if console.is_terminal:
                cells = [
                    click.style(cell, bold=True) if (number - 1, place) in table.bold else cell
                    for place, cell in enumerate(cells)
                ]
            click.echo(gap.join(cells).rstrip())
    for note in table.notes:
        print_escaped(note)


def final_accuracy(summary: Mapping[str, Any]) -> str:
    """Return in words which accuracy the final accuracy is."""
    if "kept_round" in summary:
        return f"test accuracy of the model that is kept, of round {summary['kept_round']}"
    rounds = summary["final_accuracy_rounds"]
    return f"mean test accuracy over the last {rounds} rounds" if rounds != 1 else "test accuracy of the last round"


def format_number(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    shown = round(value, 3) + 0.0  # the sum turns -0.0 into 0.0
    return f"{shown:+.3f}" if signed else f"{shown:.3f}"


def card_table(card: Mapping[str, Any]) -> Table:
    """Return a partition's card as a table with one line per key."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    for key, value in card.items():
        if key == "client_names" and len(value) > MOST_CLIENTS:
            value = [*value[:MOST_CLIENTS], f"and {len(value) - MOST_CLIENTS} more"]
        table.add_row(key.replace("_", " "), Text(printable(cell_text(value))))
    return table


def cell_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{str(key).replace('_', ' ')} {cell_text(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(map(cell_text, value)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def share_bars(counts: np.ndarray, class_names: Sequence[str], client_names: Sequence[str] = ()) -> RenderableType:
    """Return class shares as bars, for the first clients only; symbols and colours repeat if classes are many."""
    lines = [Text()]
    titles = [f"client {client:3d}" for client in range(MOST_CLIENTS)]
    if client_names:
        titles = [client_title(client_names, client) for client in range(min(len(counts), MOST_CLIENTS))]
    width = max(map(len, titles))
    for title, row in zip(titles, counts[:MOST_CLIENTS]):
        edges = np.round(np.concatenate([[0], np.cumsum(row)]) / max(row.sum(), 1) * BAR_WIDTH).astype(int)
        line = Text(f"{title.ljust(width)}  ")
        for c, (start, stop) in enumerate(itertools.pairwise(edges)):
            line.append(SYMBOLS[c % len(SYMBOLS)] * int(stop - start), style=f"black on {COLOURS[c % len(COLOURS)]}")
        lines.append(line.append(f"  {int(row.sum())}"))
    if len(counts) > MOST_CLIENTS:
        lines.append(Text(f"... and {len(counts) - MOST_CLIENTS} more"))
    if len(class_names) <= len(COLOURS):
        lines += [
            Text(),
            Text("  ").join(Text(f"{SYMBOLS[c]} {printable(name)}") for c, name in enumerate(class_names)),
        ]
    return Group(*lines)
