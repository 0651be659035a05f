"""A study's table as text: CSV with ten digits, and Markdown and LaTeX in the form of a paper."""

from __future__ import annotations

from fedrecall.measure.metrics import metric_of
from fedrecall.recipe.display_titles import titles
from fedrecall.recipe.recipe import SECTIONS
from fedrecall.report.tables import mean_and_deviation
from fedrecall.report.text_table import TextTable, csv_text
from fedrecall.report.wording import KEY_NAMES, points, points_range, value_text
from fedrecall.studies.table import Paired, StudyRow, StudyTable

TITLES = {
    "final_accuracy": "final accuracy",
    "final_accuracy_macro": "by class",
    "val_accuracy": "validation",
    "forgetting": "forgetting",
}


def heading(table: StudyTable) -> list[str]:
    words = [*setting_headings(table), "seeds", *(metric_of(key).heading(TITLES[key]) for key in table.metrics)]
    words += ["difference, points", "95 % interval", "agree"] if table.has_baseline else []
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
        texts += paired_texts(row.paired, "baseline" if row.is_baseline else "-")
    return [*texts, *([row.trouble or "finished"] if table.has_trouble else [])]


def paired_texts(paired: Paired | None, otherwise: str) -> list[str]:
    """Return the mean difference, its interval and the number of seeds that agree, or `otherwise` and hyphens."""
    if paired is None:
        return [otherwise, "-", "-"]
    return [points(paired.mean), points_range(paired.interval), f"{paired.agree}/{len(paired.values)}"]


def setting_text(key: str, value: float | str) -> str:
    """Return `FedAvg` for an algorithm's name, and a number as it was typed."""
    if isinstance(value, str):
        named = titles().of(key, {"name": value}) if key in SECTIONS else value
        return named or value_text(value)  # cross-entropy has an empty title
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def study_text_table(table: StudyTable) -> TextTable:
    """Return the table in the form of a paper."""
    return TextTable(heading(table), body(table), table.notes, words=len(table.keys))


def study_csv(table: StudyTable) -> str:
    """Return a row for each combination of settings: shares as fractions, with ten digits."""
    records = table.records()
    return csv_text([list(records[0]), *(list(record.values()) for record in records)])


def study_markdown(table: StudyTable) -> str:
    return study_text_table(table).markdown()


def study_latex(table: StudyTable) -> str:
    return study_text_table(table).latex(last="l" if table.has_trouble else "r")
