"""The result table as text to paste elsewhere: CSV, and LaTeX with booktabs."""

from __future__ import annotations

import csv
import io

import numpy as np

from fedrecall.report.tables import Cell, ResultTable, Row
from fedrecall.report.wording import MINUS

LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"±": r"$\pm$", MINUS: "$-$", "†": r"\dag", "\u00a0": "~", "<": r"\textless{}", ">": r"\textgreater{}"},
}


def as_csv(table: ResultTable) -> str:
    """A row a method; means and standard deviations over seeds in columns of their own, unrounded."""
    several = [any(_deviation(row.cells[place]) for row in _rows(table)) for place in range(len(table.columns))]
    header = ["setting", "method"]
    for column, spread in zip(table.columns, several):
        header += [column.heading, f"{column.heading}: standard deviation"] if spread else [column.heading]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for block in table.blocks:
        for row in block.rows:
            line = [_cell_text(block.title), _cell_text(row.method.label if not block.title else row.method.short)]
            for cell, spread in zip(row.cells, several):
                line += [_mean(cell), _deviation(cell)] if spread else [_mean(cell)]
            writer.writerow(line)
    return out.getvalue()


def _rows(table: ResultTable) -> list[Row]:
    return [row for block in table.blocks for row in block.rows]


def _cell_text(text: str) -> str:
    """A name that a spreadsheet would take for a formula stays a name."""
    return f"'{text}" if text[:1] in tuple("=+-@\t\r") else text


def _mean(cell: Cell) -> str:
    return f"{np.mean(cell.numbers):.6g}" if cell.numbers else _cell_text(cell.text)


def _deviation(cell: Cell) -> str:
    if cell.deviation is not None:
        return f"{cell.deviation:.6g}"
    return f"{np.std(cell.numbers, ddof=1):.6g}" if len(cell.numbers) > 1 else ""


def as_latex(table: ResultTable) -> str:
    r"""A tabular for a paper, `\usepackage{booktabs}` expected; the best that is clearly so is bold."""
    width = len(table.columns) + 1
    lines = [rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule"]
    lines.append(_line(["method", *(column.heading for column in table.columns)]))
    for block in table.blocks:
        lines.append(r"\midrule")
        if block.title:
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{{escape(block.title)}}} \\")
        for row in block.rows:
            name = row.method.label if not block.title else row.method.short
            lines.append(_line([name, *(f"{cell.text or '--'}{cell.note}" for cell in row.cells)], row))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _line(texts: list[str], row: Row | None = None) -> str:
    best = [False, *(cell.best for cell in row.cells)] if row else [False] * len(texts)
    words = [rf"\textbf{{{escape(text)}}}" if bold else escape(text) for text, bold in zip(texts, best)]
    return " & ".join(words) + r" \\"


def escape(text: str) -> str:
    """Text that LaTeX sets as it is, on one line.

    >>> escape("50 % of a_b")
    '50 \\\\% of a\\\\_b'
    """
    return "".join(LATEX.get(sign, " " if sign.isspace() else sign) for sign in text)
