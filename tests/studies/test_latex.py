"""The table compiles where LaTeX is installed, whatever names are in it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fedrecall.studies.cells import Cell
from fedrecall.studies.table import Paired, StudyRow, StudyTable
from fedrecall.studies.table_texts import study_latex

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed"),
]


def test_the_latex_table_compiles(tmp_path: Path) -> None:
    numbers = {"final_accuracy": [0.5, 0.6], "forgetting": [-0.01, 0.02]}
    cell = Cell("any", {}, ())
    plain = StudyRow(
        cell,
        {"objective": "cross_entropy", "model": "my_model#1 50 % $x^2$ {a&b} ~\\"},
        2,
        numbers,
        None,
        True,
        "",
        [],
    )
    other = StudyRow(
        cell,
        {"objective": "wsm", "model": "lenet"},
        2,
        numbers,
        Paired((0.1, -0.2)),
        False,
        "diverged (seed 1)",
        [],
    )
    table = StudyTable(["objective", "model"], [], list(numbers), [plain, other], True, ["± over seeds."])
    (tmp_path / "table.tex").write_text(study_latex(table))
    (tmp_path / "page.tex").write_text(
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n\\input{table}\n\\end{document}\n"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "page.pdf").stat().st_size > 1000
