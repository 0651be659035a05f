"""A study's table as text: CSV with ten digits, and Markdown and LaTeX in the form of a paper."""

from __future__ import annotations

import numpy as np

from fedrecall.measure.metrics import metric_of
from fedrecall.recipe.display_titles import titles
from fedrecall.recipe.recipe import SECTIONS
from fedrecall.report.significance import p_text
from fedrecall.report.tables import mean_and_deviation
from fedrecall.report.text_table import TextTable, csv_text
from fedrecall.report.wording import KEY_NAMES, points, points_range, rounded_share, value_text
from fedrecall.studies.table import Paired, StudyRow, StudyTable
from fedrecall.studies.tuning import group_key

# Settings that make another task: means are not compared across their values.
TASK = ("data", "partition", "recipe", "federation", "server_data", "evaluation")
BOLD = "Bold: the best mean of the rows with the same data and partition, which may be chance."
TITLES = {
    "final_accuracy": "final accuracy",
    "final_accuracy_macro": "by class",
    "val_accuracy": "validation",
    "forgetting": "forgetting",
}


def heading(table: StudyTable) -> list[str]:
    words = [*setting_headings(table), "seeds", *(metric_of(key).heading(TITLES[key]) for key in table.metrics)]
    words += paired_heading(corrected=table.corrected) if table.has_baseline else []
    return [*words, *(["state"] if table.has_trouble else [])]


def setting_headings(table: StudyTable) -> list[str]:
    return [KEY_NAMES.get(key, key) + (" (chosen)" if key in table.chosen else "") for key in table.keys]


def setting_texts(row: StudyRow) -> list[str]:
    return [setting_text(key, value) for key, value in row.settings.items()]


def body(table: StudyTable) -> list[list[str]]:
    """Return a list of texts for each row."""
    return [body_line(table, row) for row in table.rows]


def body_line(table: StudyTable, row: StudyRow) -> list[str]:
    texts = [*setting_texts(row), str(row.seeds)]
    texts += [mean_and_deviation(values, signed=metric_of(key).signed) or "-" for key, values in row.numbers.items()]
    if table.has_baseline:
        texts += paired_texts(row.paired, "baseline" if row.is_baseline else "-", corrected=table.corrected)
    return [*texts, *([row.trouble or "finished"] if table.has_trouble else [])]


def paired_heading(*, corrected: bool = False) -> list[str]:
    """Return the headings of `paired_texts`."""
    return ["difference, points", "95 % interval", "p", *(["p (Holm)"] if corrected else []), "agree"]


def paired_texts(paired: Paired | None, otherwise: str, *, corrected: bool = False) -> list[str]:
    """Return the mean difference, its interval and p-values, and how many seeds agree; or `otherwise` and hyphens."""
    if paired is None:
        return [otherwise, *(["-"] * (len(paired_heading(corrected=corrected)) - 1))]
    p_values = [p_text(paired.p), *([p_text(paired.p_holm)] if corrected else [])]
    agree = f"{paired.agree}/{len(paired.values)}"
    return [points(paired.mean), points_range(paired.interval), *p_values, agree]


def setting_text(key: str, value: float | str) -> str:
    """Return `FedAvg` for an algorithm's name, and a number as it was typed."""
    if isinstance(value, str):
        named = titles().of(key, {"name": value}) if key in SECTIONS else value
        return named or value_text(value)  # cross-entropy has an empty title
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def study_text_table(table: StudyTable) -> TextTable:
    """Return the table in the form of a paper."""
    lines, marked = body(table), best_cells(table)
    notes = [*table.notes, *([BOLD] if marked else [])]
    return TextTable(heading(table), lines, notes, len(table.keys), marked)


def best_cells(table: StudyTable) -> frozenset[tuple[int, int]]:
    """Return the line and column of each cell with the best mean among the rows with the same task."""
    first, marked = len(table.keys) + 1, set()
    groups: dict[str, list[int]] = {}
    for line, row in enumerate(table.rows):
        task = {key: value for key, value in row.settings.items() if key.startswith(TASK)}
        if not row.trouble:
            groups.setdefault(group_key(task, ()), []).append(line)
    for lines in groups.values():
        for place, key in enumerate(table.metrics):
            sign = {"higher": 1, "lower": -1}.get(str(metric_of(key).better), 0)
            means = {
                line: sign * rounded_share(float(np.mean(values)))
                for line in lines
                if (values := table.rows[line].numbers[key])
            }
            if sign and len(set(means.values())) > 1:  # equal as they are shown: none is the best
                marked |= {(line, first + place) for line, mean in means.items() if mean == max(means.values())}
    return frozenset(marked)


def study_csv(table: StudyTable) -> str:
    """Return a row for each combination of settings: shares as fractions, with ten digits."""
    records = table.records()
    return csv_text([list(records[0]), *(list(record.values()) for record in records)])


def study_markdown(table: StudyTable) -> str:
    return study_text_table(table).markdown()


def study_latex(table: StudyTable) -> str:
    return study_text_table(table).latex(last="l" if table.has_trouble else "r")
