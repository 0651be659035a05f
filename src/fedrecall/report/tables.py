"""The tables of the page as plain values; the template escapes and lays them out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedrecall.measure.metrics import METRICS, metric_of
from fedrecall.report.comparison import Method, blocks, competitors, differing_keys, flatten
from fedrecall.report.intervals import clear_winner, sample_deviation
from fedrecall.report.paper_results import published
from fedrecall.report.prior_remarks import balanced, prior_remark
from fedrecall.report.validation import last_validation
from fedrecall.report.wording import KEY_NAMES, count_of, in_hundred, number, value_text, with_deviation

BY_CLASS = "final_accuracy_macro"


@dataclass(frozen=True)
class TableCell:
    """A cell's text and tooltip, and whether it is clearly the best in its block."""

    text: str
    tip: str = ""
    best: bool = False
    note: str = ""
    numbers: tuple[float, ...] = ()  # one per seed, in the unit shown; for a published result, its mean
    deviation: float | None = None


@dataclass(frozen=True)
class ResultRow:
    method: Method
    cells: list[TableCell]


@dataclass(frozen=True)
class Block:
    """Comparable methods, titled with the settings that differ from the other blocks."""

    title: str
    rows: list[ResultRow]


@dataclass(frozen=True)
class Column:
    title: str
    key: str  # the metric that gives the definition and the unit
    cell: Callable[[Method], TableCell]

    @property
    def heading(self) -> str:
        """The title with the unit."""
        return metric_of("final_accuracy" if self.key == "published" else self.key).heading(self.title)


@dataclass(frozen=True)
class ResultTable:
    columns: list[Column]
    blocks: list[Block]
    star: str  # the meaning of the star, or why there is none
    judges: str  # which accuracy each prior favours, if the test set is not balanced


def result_table(methods: list[Method]) -> ResultTable:
    """Return the table without columns that are empty or redundant."""
    columns = [column for column in COLUMNS if any(column.cell(method).text for method in methods)]
    if final_rounds(methods):  # stated once below the table
        columns = [column for column in columns if column.key != "final_accuracy_rounds"]
    judges = judges_remark(methods)
    if not judges:  # it would repeat the final accuracy
        columns = [column for column in columns if column.key != BY_CLASS]
    groups = blocks(methods)
    found = []
    for title, group in zip(block_titles(groups), groups):
        winner = clear_winner(group)
        rows = []
        for method in group:
            cells = [column.cell(method) for column in columns]
            best = [method is winner and column.key == "final_accuracy" for column in columns]
            rows.append(ResultRow(method, [replace(cell, best=mark) for cell, mark in zip(cells, best)]))
        found.append(Block(title, rows))
    return ResultTable(columns, found, star_words(groups), judges)


def judges_remark(methods: list[Method]) -> str:
    """Return which accuracy the methods' priors favour; an empty text if the test set is balanced."""
    if balanced(run.summary for method in methods for run in method.runs):
        return ""
    return f"{prior_remark({m.label: str(m.runs[0].summary.get('meant_for')) for m in methods})} "


def star_words(groups: list[list[Method]]) -> str:
    """Return the meaning of the star, or why there is none; an empty text without rivals."""
    rivals = [ranked for ranked in map(competitors, groups) if len(ranked) > 1]
    if not rivals:
        return ""
    if any(clear_winner(group) for group in groups):
        return "★ ahead of every method that compares: each paired 95 % interval over seeds excludes zero. "
    if all(len(method.runs) == 1 for ranked in rivals for method in ranked):
        return "No star for the best: one seed each does not tell a difference from chance. "
    return "No star for the best: no paired 95 % interval over seeds excludes zero. "


def final_rounds(methods: list[Method]) -> str:
    """Return the number of rounds behind the final accuracy in words, if it is the same for all methods."""
    counts = {_rounds_cell(method).text for method in methods if method.values("final_accuracy")}
    count = counts.pop() if len(counts) == 1 else ""
    if count == "1":
        return "Final accuracy is that of the last round. "
    return f"Final accuracy is the mean over the last {count_of(int(count), 'round')}. " if count.isdigit() else ""


def block_titles(groups: list[list[Method]]) -> list[str]:
    """Return the settings in which each block differs from the others."""
    flats = [
        {k: v for k, v in flatten(group[0].recipe).items() if not k.startswith(("algorithm", "objective"))}
        for group in groups
    ]
    titles = []
    for flat in flats:
        keys = {key for other in flats for key in differing_keys(flat, other)}
        words = [f"{KEY_NAMES.get(key, key)} {value_text(flat[key])}" for key in flat if key in keys]
        titles.append(", ".join(words))
    return titles


def mean_and_deviation(values: list[float], *, signed: bool = False) -> str:
    """Return shares over seeds as `85.8 ± 0.3`, in percent or points; an empty text without values."""
    return with_deviation(float(np.mean(values)), sample_deviation(values), signed=signed) if values else ""


def _share_cell(key: str, values: list[float]) -> TableCell:
    """Return the cell of a metric that is a share, from one value per seed."""
    metric = metric_of(key)
    each = ", ".join(in_hundred(value) for value in values)
    return TableCell(
        mean_and_deviation(values, signed=metric.signed),
        f"each seed: {each}" if len(values) > 1 else "",
        numbers=tuple(metric.factor * value for value in values),
    )


def _summary(key: str) -> Callable[[Method], TableCell]:
    return lambda method: _share_cell(key, method.values(key))


def _validation(key: str) -> Callable[[Method], TableCell]:
    def cell(method: Method) -> TableCell:
        values = [last_validation(run, key) for run in method.runs]
        return _share_cell(key, [value for value in values if value is not None])

    return cell


def _seeds_cell(method: Method) -> TableCell:
    return TableCell(str(len(method.runs)), ", ".join(str(run.path) for run in method.runs))


def _rounds_cell(method: Method) -> TableCell:
    counts = {run.summary.get("final_accuracy_rounds", len(run.curve("test_accuracy")[0])) for run in method.runs}
    return TableCell("/".join(str(count) for count in sorted(counts) if count))


def _published(method: Method) -> TableCell:
    found = published(method.recipe)
    if found is None:
        return TableCell("")
    where = f"{found.table.replace('table', 'Table ')} of the paper"
    return TableCell(
        with_deviation(found.accuracy, found.sd),
        f"{where}: {found.remark}" if found.remark else where,
        note="†" if found.remark else "",
        numbers=(100 * found.accuracy,),
        deviation=100 * found.sd,
    )


def _seconds(method: Method) -> TableCell:
    values = [run.summary["seconds"] for run in method.runs if run.summary.get("seconds")]
    return TableCell(duration(float(np.mean(values)))) if values else TableCell("")


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


COLUMNS = [
    Column("seeds", "seeds", _seeds_cell),
    Column("final accuracy", "final_accuracy", _summary("final_accuracy")),
    Column("by class", BY_CLASS, _summary(BY_CLASS)),
    Column("over rounds", "final_accuracy_rounds", _rounds_cell),
    Column("published", "published", _published),
    Column("forgetting", "forgetting", _summary("forgetting")),
    Column("learned", "learned", _summary("learned")),
    Column("validation", "val_accuracy", _validation("val_accuracy")),
    Column("worst tenth", "val_accuracy_worst", _validation("val_accuracy_worst")),
    Column("personal", "personal_accuracy", _summary("personal_accuracy")),
    Column("time", "seconds", _seconds),
]

LAST_ROUNDS = "In tables: the mean over the evaluated rounds among those that the final accuracy is of."
TABLE_WORDS = {
    "seeds": "How many runs that differ in nothing but their seeds.",
    "published": "What the paper reports for this data set, model, norm, method, rate and share of clients.",
    "val_accuracy": f"{METRICS['val_accuracy'].words} {LAST_ROUNDS}",
    "val_accuracy_worst": f"{METRICS['val_accuracy_worst'].words} {LAST_ROUNDS}",
    "seconds": "From start to end, mean over seeds.",
}


def card_lines(card: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of a partition's card, without the class lists, which have figures of their own."""
    lines = []
    for key, value in card.items():
        if key in ("class_names", "class_counts", "client_names"):
            continue
        if key == "digest":
            value = str(value)[:12]
        if key == "one_class_clients" and isinstance(value, dict):
            value = value.get("count", value)
        lines.append((key.replace("_", " "), number(value)))
    return lines
