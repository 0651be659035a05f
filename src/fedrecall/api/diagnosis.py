"""The result of a diagnosis: its sentences, its numbers and its two runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from fedrecall.api.pairing import PAIR
from fedrecall.api.run import Run
from fedrecall.recipe.files import Tree
from fedrecall.report.diagnosis import Findings
from fedrecall.report.wording import rounded_share
from fedrecall.runs.jsonl import finite

HEAD = ("points of accuracy", *PAIR.values())
# Titles of the numbers in a diagnosis, and the fields of `Findings` that hold them.
ROWS = {
    "forgotten on the others' data": "forgetting",
    "  the drops alone": "drops",
    "  the rises alone": "rises",
    "learned on its own data": "learned",
    "forgotten on classes that it lacks": "absent",
    "forgotten on classes that it has": "present",
    "accuracy of the averaged model, %": "averaged",
}


@dataclass(frozen=True)
class Diagnosis:
    """The result of a diagnosis; printing it shows the sentences."""

    sentences: tuple[str, ...]
    notes: tuple[str, ...]  # caveats about the numbers
    findings: dict[str, Findings]  # the numbers of "cross_entropy" and "wsm"
    cross_entropy: Run
    wsm: Run
    report: Path

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def __repr__(self) -> str:
        return f"Diagnosis(runs in {str(self.report.parent)!r}: {self.sentences[-1]})"

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.sentences)
        head, *rows = (
            "<tr>" + "".join(f"<{cell}>{escape(text)}</{cell}>" for text in row) + "</tr>"
            for cell, row in [("th", HEAD), *(("td", row) for row in self.table())]
        )
        notes = "".join(f"<p>note: {escape(note)}</p>" for note in self.notes)
        return f"{said}<table>{head}{''.join(rows)}</table>{notes}"

    def table(self) -> list[tuple[str, str, str]]:
        """Return a line for each number: its title, its value with cross-entropy and its value with WSM."""
        lines = []
        for title, key in ROWS.items():
            values = [rounded_share(getattr(self.findings[name], key)) for name in PAIR]
            sign = "" if key in ("averaged", "drops", "rises") else "+"
            shown = ["-" if value != value else f"{value:{sign}.1f}" for value in values]
            lines.append((title, shown[0], shown[1]))
        return lines

    def tree(self) -> Tree:
        """Return the diagnosis for JSON, with accuracies and their differences as fractions."""
        paths = {"cross_entropy": self.cross_entropy.path, "wsm": self.wsm.path}
        runs = {name: {"path": str(paths[name]), **asdict(found)} for name, found in self.findings.items()}
        said = {"sentences": self.sentences, "notes": self.notes}
        return finite({"report": str(self.report), **said, "runs": runs})  # type: ignore[no-any-return]
