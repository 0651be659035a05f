"""What a diagnosis came to: its sentences, its numbers and its two runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from fedrecall.front.pairing import PAIR
from fedrecall.front.run import Run
from fedrecall.recipe.files import Tree
from fedrecall.report.diagnosis import Findings
from fedrecall.report.wording import rounded
from fedrecall.runs.lines import finite

HEAD = ("points of accuracy", *PAIR.values())
# The numbers of a diagnosis, and where they are among its findings.
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
    """What the two rounds say. Printed, it is its sentences."""

    sentences: tuple[str, ...]
    notes: tuple[str, ...]  # what to know before trusting the numbers
    findings: dict[str, Findings]  # the numbers: "cross_entropy" and "wsm"
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
        """A line for each number: what it is, with cross-entropy, and with WSM."""
        lines = []
        for title, key in ROWS.items():
            values = [rounded(getattr(self.findings[name], key)) for name in PAIR]
            sign = "" if key in ("averaged", "drops", "rises") else "+"
            shown = ["-" if value != value else f"{value:{sign}.1f}" for value in values]
            lines.append((title, shown[0], shown[1]))
        return lines

    def tree(self) -> Tree:
        """For JSON. Accuracies and their differences are shares."""
        paths = {"cross_entropy": self.cross_entropy.path, "wsm": self.wsm.path}
        runs = {name: {"path": str(paths[name]), **asdict(found)} for name, found in self.findings.items()}
        said = {"sentences": self.sentences, "notes": self.notes}
        return finite({"report": str(self.report), **said, "runs": runs})  # type: ignore[no-any-return]
