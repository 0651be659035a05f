"""The result table: its units, its columns, and what is pasted from it."""

from __future__ import annotations

import csv
import io

import pytest

from fedrecall.report.table_texts import result_csv, result_latex
from fedrecall.report.tables import final_rounds, result_table
from fedrecall.report.text_table import latex_escape

WSM = {"name": "wsm", "tau": 1.0, "smoothing": 0.0}
SEEDS = [
    *({"seed": seed, "final": 0.5 + seed / 100} for seed in (0, 1)),
    *({"seed": seed, "final": 0.6 + seed / 100, "objective": WSM} for seed in (0, 1)),
]


def column(table, key: str) -> list[str]:
    place = [found.key for found in table.columns].index(key)
    return [row.cells[place].text for block in table.blocks for row in block.rows]


def test_the_table_is_in_percent_and_points(methods) -> None:
    table = result_table(methods(*SEEDS))
    assert column(table, "final_accuracy") == ["50.5 ± 0.7", "60.5 ± 0.7"]  # 1 / sqrt(2) points
    assert {"final accuracy, %", "forgetting, points", "worst tenth, %"} <= {c.heading for c in table.columns}
    assert all(text.startswith("+") for text in column(table, "forgetting"))


def test_an_unfinished_run_shows_no_empty_columns(methods) -> None:
    going = {
        "finished": False,
        "rounds": 20,
        "evaluation": {"every": 2, "test_last": 0},
        "forgetting": {"every": 0},
    }
    table = result_table(methods(going))
    assert [found.key for found in table.columns] == ["seeds", "val_accuracy", "val_accuracy_worst"]


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (1, "Final accuracy is that of the last round. "),
        (2, "Final accuracy is the mean over the last 2 rounds. "),
    ],
)
def test_over_how_many_rounds_is_said(methods, last: int, said: str) -> None:
    assert final_rounds(methods({"evaluation": {"every": 2, "test_last": last}})) == said


def test_csv_has_means_and_deviations_as_numbers(methods) -> None:
    rows = list(csv.DictReader(io.StringIO(result_csv(result_table(methods(*SEEDS))))))
    assert [row["method"] for row in rows] == ["FedAvg", "FedAvg + WSM"]
    assert [float(row["final accuracy, %"]) for row in rows] == pytest.approx([50.5, 60.5])
    spread = [float(row["final accuracy, %: standard deviation"]) for row in rows]
    assert spread == pytest.approx([0.707107, 0.707107])
    assert float(rows[0]["forgetting, points"]) > 0


def test_csv_of_one_seed_has_no_deviations(methods) -> None:
    header = result_csv(result_table(methods({"final": 0.5}))).splitlines()[0]
    assert "standard deviation" not in header


def test_a_name_is_no_formula_in_a_spreadsheet(methods) -> None:
    table = result_table(methods({"algorithm": {"name": "mine:=1+2"}}))
    assert next(csv.DictReader(io.StringIO(result_csv(table))))["method"] == "'=1+2"


def test_latex_is_a_table_of_booktabs_with_the_best_in_bold(methods) -> None:
    lines = result_latex(result_table(methods(*SEEDS))).splitlines()
    assert lines[1:5:2] == [r"\toprule", r"\midrule"]
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert lines[2].startswith(r"method & seeds & final accuracy, \% & ")
    assert lines[4].startswith(r"FedAvg & 2 & 50.5 $\pm$ 0.7 & ")
    assert lines[5].startswith(r"FedAvg + WSM & 2 & \textbf{60.5 $\pm$ 0.7} & ")
    columns = lines[0].count("r") - "\\begin{tabular}".count("r")
    assert all(line.count(" & ") == columns for line in (lines[2], lines[4], lines[5]))


def test_latex_has_a_row_for_each_setting(methods) -> None:
    text = result_latex(result_table(methods({"local": {"lr": 0.1}}, {"local": {"lr": 0.2}})))
    assert text.count(r"\midrule") == 2
    assert r"}{l}{rate 0.1} \\" in text


def test_latex_takes_every_sign_as_text() -> None:
    assert latex_escape("a_b & 5 % {x}\\^~$#") == (
        r"a\_b \& 5 \% \{x\}\textbackslash{}\textasciicircum{}\textasciitilde{}\$\#"
    )
    assert latex_escape("one\ntwo") == "one two"
