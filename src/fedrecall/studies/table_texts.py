"""A study's table as text: CSV with every digit, Markdown and LaTeX as a paper has it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from fedrecall.measure.metrics import metric_of
from fedrecall.recipe.names import titles
from fedrecall.recipe.recipe import SECTIONS
from fedrecall.report.table_texts import escape
from fedrecall.report.tables import mean_and_deviation
from fedrecall.report.wording import KEY_NAMES, in_words, points
from fedrecall.studies.table import Paired, Row, StudyTable

TITLES = {
    "final_accuracy": "final accuracy",
    "final_accuracy_macro": "by class",
    "val_accuracy": "validation",
    "forgetting": "forgetting",
}
FORMULAS = tuple("=+-@\t\r")  # what a spreadsheet computes


def heading(table: StudyTable) -> list[str]:
    words = [KEY_NAMES.get(key, key) + (" (chosen)" if key in table.chosen else "") for key in table.keys]
    words += ["seeds", *(metric_of(key).heading(TITLES[key]) for key in table.metrics)]
    words += ["difference, points", "95 % interval", "agree"] if table.has_baseline else []
    return [*words, *(["state"] if any(row.trouble for row in table.rows) else [])]


def body(table: StudyTable) -> list[list[str]]:
    """A list of texts for each row."""
    return [line(table, row) for row in table.rows]


def line(table: StudyTable, row: Row) -> list[str]:
    texts = [setting_text(key, value) for key, value in row.settings.items()]
    texts.append(str(row.seeds))
    texts += [
        mean_and_deviation(values, signed=metric_of(key).signed) or "-" for key, values in row.numbers.items()
    ]
    if table.has_baseline:
        texts += paired_texts(row.paired, "baseline" if row.is_baseline else "-")
    return [*texts, *([row.trouble or "finished"] if any(other.trouble for other in table.rows) else [])]


def paired_texts(paired: Paired | None, otherwise: str) -> list[str]:
    """The mean difference, its interval, and how many seeds agree."""
    if paired is None:
        return [otherwise, "-", "-"]
    found = paired.interval
    between = f"{points(found[0])} to {points(found[1])}" if found else "-"
    return [points(paired.mean), between, f"{paired.agree}/{len(paired.values)}"]


def setting_text(key: str, value: float | str) -> str:
    """`FedAvg` for an algorithm's name; a number as it was typed, not rounded as a result is."""
    if isinstance(value, str):
        named = titles().of(key, {"name": value}) if key in SECTIONS else value
        return named or in_words(value)  # cross-entropy has no title: it is what an algorithm has by itself
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def as_csv(table: StudyTable) -> str:
    """A row each, shares as fractions, unrounded but for the noise of the last digits."""
    records = table.records()
    return csv_text([list(records[0]), *(list(record.values()) for record in records)])


def csv_text(rows: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([[csv_value(value) for value in row] for row in rows])
    return out.getvalue()


def csv_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.10g}"
    text = str(value)
    return f"'{text}" if text[:1] in FORMULAS else text


def as_markdown(table: StudyTable) -> str:
    return markdown(heading(table), body(table), table.notes, words=len(table.keys))


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str], *, words: int) -> str:
    """A table whose first columns are words, and what is to be said about it below."""
    rule = ["---" if place < words else "---:" for place in range(len(head))]
    lines = ["| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |" for texts in (head, rule, *rows)]
    return "\n".join([*lines, "", *notes, ""])


def as_latex(table: StudyTable) -> str:
    columns = "l" * len(table.keys) + "r" * (len(heading(table)) - len(table.keys))
    if any(row.trouble for row in table.rows):
        columns = columns[:-1] + "l"
    return latex(heading(table), body(table), table.notes, columns)


def latex(head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str], columns: str) -> str:
    r"""A tabular for a paper, `\usepackage{booktabs}` expected; what is to be said about it as comments above."""
    cells = [["--" if text == "-" else escape(text) for text in texts] for texts in (head, *rows)]
    first, *others = [" & ".join(texts) + r" \\" for texts in cells]
    begin, end = rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
    said = [f"% {note}" for note in notes]
    return "\n".join([*said, begin, r"\toprule", first, r"\midrule", *others, r"\bottomrule", end, ""])
