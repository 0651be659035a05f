"""The tables of the page as plain values; the template escapes and draws them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrecall.report.comparison import Method, best, blocks, differences, flatten
from fedrecall.report.paper_results import published
from fedrecall.report.wording import KEY_NAMES, MINUS, in_words, number


@dataclass(frozen=True)
class Cell:
    """What is shown, what is said when it is pointed at, and whether it is the best of its kind."""

    text: str
    tip: str = ""
    best: bool = False
    note: str = ""


@dataclass(frozen=True)
class Row:
    method: Method
    cells: list[Cell]


@dataclass(frozen=True)
class Block:
    """Methods that compare like for like, under the settings that set them apart from the other blocks."""

    title: str
    rows: list[Row]


@dataclass(frozen=True)
class Column:
    title: str
    key: str  # of the metric, for its definition
    cell: Callable[[Method], Cell]


@dataclass(frozen=True)
class ResultTable:
    columns: list[Column]
    blocks: list[Block]


def result_table(methods: list[Method]) -> ResultTable:
    """Only the columns that say something."""
    columns = [column for column in COLUMNS if any(column.cell(method).text for method in methods)]
    if final_rounds(methods):  # said once, below the table
        columns = [column for column in columns if column.key != "final_accuracy_rounds"]
    groups = blocks(methods)
    titles = block_titles(groups)
    found = []
    for title, group in zip(titles, groups):
        winner = best(group)
        rows = []
        for method in group:
            cells = [column.cell(method) for column in columns]
            if method is winner:
                cells = [
                    Cell(c.text, c.tip, True, c.note) if column.key == "final_accuracy" else c
                    for column, c in zip(columns, cells)
                ]
            rows.append(Row(method, cells))
        found.append(Block(title, rows))
    return ResultTable(columns, found)


def final_rounds(methods: list[Method]) -> str:
    """Of how many rounds the final accuracy is the mean, where that is the same for all."""
    counts = {_rounds(method).text for method in methods}
    if len(counts) > 1 or counts <= {"0", "1"}:
        return ""
    return f"Final accuracy is the mean over the last {counts.pop()} rounds. "


def block_titles(groups: list[list[Method]]) -> list[str]:
    """The settings in which a block differs from the others."""
    flats = [
        {k: v for k, v in flatten(group[0].recipe).items() if not k.startswith(("algorithm", "objective"))}
        for group in groups
    ]
    titles = []
    for flat in flats:
        keys = {key for other in flats for key in differences(flat, other)}
        words = [f"{KEY_NAMES.get(key, key)} {in_words(flat[key])}" for key in flat if key in keys]
        titles.append(", ".join(words))
    return titles


def mean_and_deviation(values: list[float], *, signed: bool = False) -> str:
    """`0.858 ± 0.003` over seeds; the standard deviation is that of a sample."""
    if not values:
        return ""
    mean = f"{np.mean(values):+.3f}".replace("-", MINUS) if signed else f"{np.mean(values):.3f}"
    return f"{mean} ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else mean


def _summary(key: str, *, signed: bool = False) -> Callable[[Method], Cell]:
    def cell(method: Method) -> Cell:
        values = method.values(key)
        each = ", ".join(f"{value:.4f}" for value in values)
        return Cell(mean_and_deviation(values, signed=signed), f"each seed: {each}" if len(values) > 1 else "")

    return cell


def _last(key: str) -> Callable[[Method], Cell]:
    def cell(method: Method) -> Cell:
        values = [float(run.curve(key)[1][-1]) for run in method.runs if len(run.curve(key)[1])]
        return Cell(mean_and_deviation(values))

    return cell


def _seeds(method: Method) -> Cell:
    return Cell(str(len(method.runs)), ", ".join(str(run.path) for run in method.runs))


def _rounds(method: Method) -> Cell:
    counts = {run.summary.get("final_accuracy_rounds", len(run.curve("test_accuracy")[0])) for run in method.runs}
    return Cell("/".join(map(str, sorted(counts))))


def _published(method: Method) -> Cell:
    found = published(method.recipe)
    if found is None:
        return Cell("")
    where = f"{found.table.replace('table', 'Table ')} of the paper"
    text = f"{found.accuracy:.3f} ± {found.sd:.3f}"
    return Cell(text, f"{where}: {found.differs}" if found.differs else where, note="†" if found.differs else "")


def _seconds(method: Method) -> Cell:
    values = [run.summary["seconds"] for run in method.runs if run.summary.get("seconds")]
    return Cell(duration(float(np.mean(values)))) if values else Cell("")


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


COLUMNS = [
    Column("seeds", "seeds", _seeds),
    Column("final accuracy", "final_accuracy", _summary("final_accuracy")),
    Column("over rounds", "final_accuracy_rounds", _rounds),
    Column("published", "published", _published),
    Column("forgetting", "forgetting", _summary("forgetting", signed=True)),
    Column("learned", "learned", _summary("learned", signed=True)),
    Column("validation", "val_accuracy", _last("val_accuracy")),
    Column("worst 10 %", "val_accuracy_worst", _last("val_accuracy_worst")),
    Column("macro", "test_accuracy_macro", _last("test_accuracy_macro")),
    Column("time", "seconds", _seconds),
]

TABLE_WORDS = {
    "seeds": "How many runs that differ in nothing but their seeds.",
    "published": "What the paper reports for this data set, model, norm, method, rate and share of clients.",
    "seconds": "From start to end, mean over seeds.",
}


def card_lines(card: dict[str, Any]) -> list[tuple[str, str]]:
    """A partition's card, a line each; the long lists have pictures of their own."""
    lines = []
    for key, value in card.items():
        if key in ("class_names", "class_counts"):
            continue
        if key == "digest":
            value = str(value)[:12]
        if key == "one_class_clients" and isinstance(value, dict):
            value = value.get("count", value)
        lines.append((key.replace("_", " "), number(value)))
    return lines
