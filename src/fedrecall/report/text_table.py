"""Tables as CSV for spreadsheets, Markdown, and LaTeX with booktabs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from fedrecall.report.wording import MINUS

FORMULAS = tuple("=+-@\t\r")  # a spreadsheet reads text that begins with one of these as a formula
LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"±": r"$\pm$", MINUS: "$-$", "†": r"\dag", "\u00a0": "~", "<": r"\textless{}", ">": r"\textgreater{}"},
}
NOTHING = "-"  # text of a cell without a value


@dataclass(frozen=True)
class TextTable:
    """A table of texts with notes; its first columns hold words, the others numbers."""

    heading: list[str]
    rows: list[list[str]]
    notes: list[str]
    words: int = 1  # number of columns that hold words
    bold: frozenset[tuple[int, int]] = frozenset()  # the row and column of each cell in bold

    def csv(self) -> str:
        return csv_text([self.heading, *self.rows])

    def markdown(self) -> str:
        """Return the table with the notes below it."""
        rule = ["---" if place < self.words else "---:" for place in range(len(self.heading))]
        lines = [
            "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
            for texts in (self.heading, rule, *self._bold_rows())
        ]
        return "\n".join([*lines, "", *self.notes, ""])

    def _bold_of(self, row: int) -> list[int]:
        return sorted(column for line, column in self.bold if line == row)

    def _bold_rows(self) -> list[list[str]]:
        """Return the rows with the best cells in Markdown's bold."""
        return [
            [f"**{text}**" if (line, column) in self.bold else text for column, text in enumerate(row)]
            for line, row in enumerate(self.rows)
        ]

    def html(self, caption: str) -> str:
        """Return the table for a notebook, with the notes below it."""
        head = "".join(f"<th>{escape(text)}</th>" for text in self.heading)
        rows = []
        for line, row in enumerate(self.rows):
            cells = [
                f"<b>{escape(text)}</b>" if (line, at) in self.bold else escape(text) for at, text in enumerate(row)
            ]
            rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
        notes = "<br>".join(map(escape, self.notes))
        return (
            f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
            f"<tbody>{''.join(rows)}</tbody></table><p>{notes}</p>"
        )

    def latex(self, *, last: str = "r") -> str:
        """Return the table with the notes as comments above it; `last` aligns the last column."""
        columns = "l" * self.words + "r" * (len(self.heading) - self.words)
        groups = [[latex_row(self.heading)], [latex_row(row, self._bold_of(at)) for at, row in enumerate(self.rows)]]
        return latex_tabular(columns[:-1] + last, groups, self.notes)


def csv_text(rows: Iterable[Sequence[object]], *, digits: int = 10) -> str:
    """Return rows as CSV, floats with `digits` significant digits, None as an empty cell."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_csv_value(value, digits) for value in row] for row in rows)
    return out.getvalue()


def _csv_value(value: object, digits: int) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    text = str(value)
    return f"'{text}" if text[:1] in FORMULAS else text


def latex_tabular(columns: str, groups: Iterable[Sequence[str]], notes: Sequence[str] = ()) -> str:
    r"""Return a tabular, which needs `\usepackage{booktabs}`: groups of lines with a rule between groups."""
    lines = [line for group in groups for line in (r"\midrule", *group)][1:]
    begin, end = rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
    return "\n".join([*(f"% {note}" for note in notes), begin, r"\toprule", *lines, r"\bottomrule", end, ""])


def latex_row(texts: Iterable[str], bold: Iterable[int] = ()) -> str:
    """Return a line of a tabular, with the cells at the indices `bold` in bold."""
    cells = ["--" if text == NOTHING else latex_escape(text) for text in texts]
    for place in bold:
        cells[place] = rf"\textbf{{{cells[place]}}}"
    return " & ".join(cells) + r" \\"


def latex_escape(text: str) -> str:
    """Return the text on one line, escaped for LaTeX.

    >>> latex_escape("50 % of a_b")
    '50 \\\\% of a\\\\_b'
    """
    return "".join(LATEX.get(sign, " " if sign.isspace() else sign) for sign in text)
