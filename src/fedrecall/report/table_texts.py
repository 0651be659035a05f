"""The report's result table as CSV and LaTeX."""

from __future__ import annotations

import numpy as np

from fedrecall.report.intervals import sample_deviation
from fedrecall.report.tables import ResultRow, ResultTable, TableCell
from fedrecall.report.text_table import NOTHING, csv_text, latex_escape, latex_row, latex_tabular


def result_csv(table: ResultTable) -> str:
    """Return CSV with a row per method; standard deviations over seeds have columns of their own."""
    titled = [(block.title, row) for block in table.blocks for row in block.rows]
    places = range(len(table.columns))
    spread = [any(_deviation(row.cells[place]) is not None for _, row in titled) for place in places]
    header = ["setting", "method"]
    for column, several in zip(table.columns, spread):
        header += [column.heading, f"{column.heading}: standard deviation"] if several else [column.heading]
    lines: list[list[object]] = [list(header)]
    for title, row in titled:
        line: list[object] = [title, _row_name(title, row)]
        for cell, several in zip(row.cells, spread):
            mean = float(np.mean(cell.numbers)) if cell.numbers else cell.text
            line += [mean, _deviation(cell)] if several else [mean]
        lines.append(line)
    return csv_text(lines, digits=6)


def _row_name(title: str, row: ResultRow) -> str:
    """Return the method's name, without the settings if a title states them."""
    return row.method.short if title else row.method.label


def _deviation(cell: TableCell) -> float | None:
    return sample_deviation(cell.numbers) if cell.deviation is None else cell.deviation


def result_latex(table: ResultTable) -> str:
    """Return a LaTeX tabular; the best method is bold if it is clearly ahead."""
    width = len(table.columns) + 1
    groups = [[latex_row(["method", *(column.heading for column in table.columns)])]]
    for block in table.blocks:
        title = [rf"\multicolumn{{{width}}}{{l}}{{{latex_escape(block.title)}}} \\"] if block.title else []
        groups.append([*title, *(_latex_line(block.title, row) for row in block.rows)])
    return latex_tabular("l" + "r" * (width - 1), groups)


def _latex_line(title: str, row: ResultRow) -> str:
    texts = [f"{cell.text or NOTHING}{cell.note}" for cell in row.cells]
    best = [place for place, cell in enumerate(row.cells, start=1) if cell.best]
    return latex_row([_row_name(title, row), *texts], bold=best)
