"""A study's numbers, worked out by hand from folders with chosen numbers: means, pairs, and what is chosen."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest
import yaml

from fedrecall.errors import InputError
from fedrecall.recipe.display_titles import titles
from fedrecall.report.comparison import group_methods
from fedrecall.report.tables import result_table
from fedrecall.report.validation import last_validation
from fedrecall.runs.reader import RunRecord
from fedrecall.studies.cells import cells_of, plan
from fedrecall.studies.compare import compare
from fedrecall.studies.design import Design, load_design
from fedrecall.studies.folder import StudyFolder
from fedrecall.studies.sweep import Study
from fedrecall.studies.table import StudyTable, study_table
from fedrecall.studies.table_texts import study_csv, study_latex, study_markdown
from fedrecall.studies.tuning import choose_by_validation

T_2 = 4.303  # the 97.5 % point of Student's t with 2 degrees of freedom, from a table


def write_run(path: Path, recipe: dict, val: list[float], test: float, status: str = "finished") -> None:
    """A run of 4 rounds, evaluated in rounds 2 and 4, tested in the last two."""
    path.mkdir(parents=True)
    (path / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    lines = [{"round": t, "train_loss": 1.0, "bytes_up": 10, "bytes_down": 5} for t in range(1, 5)]
    lines[1]["val_accuracy"], lines[3]["val_accuracy"] = val
    lines[2]["test_accuracy"] = lines[3]["test_accuracy"] = test
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    times = "".join(json.dumps({"round": t, "seconds": 2.0}) + "\n" for t in range(1, 5))
    (path / "timings.jsonl").write_text(times)
    summary = {"status": status, "rounds": 4, "rounds_done": 4, "final_accuracy": test, "final_accuracy_rounds": 2}
    (path / "summary.json").write_text(json.dumps({**summary, "forgetting": 0.1, "learned": 0.2, "warnings": []}))


def study(folder: Path, numbers: dict[tuple[str, float], list[tuple[list[float], float]]], **asked) -> Design:
    """A study over objective and rate, with these validation and test accuracies by seed."""
    objectives = list(dict.fromkeys(objective for objective, _ in numbers))
    rates = list(dict.fromkeys(rate for _, rate in numbers))
    seeds = len(next(iter(numbers.values())))
    settings = {"rounds": 4, "evaluation.every": 2, "evaluation.test_last": 2}
    grid = {"objective": objectives, "local.lr": rates}
    design = load_design("demo", grid, seeds=seeds, settings=settings, **asked)
    place = StudyFolder.of(folder, design)
    for run in plan(design, cells_of(design)):
        val, test = numbers[run.recipe.objective["name"], run.recipe.local.lr][run.slot.seed]
        write_run(place.run(run.slot), run.recipe.tree(), val, test)
    return design


def table_of(folder: Path, design: Design) -> StudyTable:
    return study_table(design, cells_of(design), StudyFolder(folder))


PLAIN = [([0.1, 0.50], 0.52), ([0.1, 0.60], 0.58), ([0.1, 0.40], 0.40)]
WSM = [([0.1, 0.70], 0.62), ([0.1, 0.70], 0.66), ([0.1, 0.70], 0.46)]


def test_means_deviations_and_paired_differences_are_those_of_paper_and_pencil(tmp_path: Path) -> None:
    numbers = {("cross_entropy", 0.1): PLAIN, ("wsm", 0.1): WSM}
    design = study(tmp_path / "s", numbers, baseline={"objective": "cross_entropy"})
    plain, wsm = table_of(tmp_path / "s", design).records()
    # .52 .58 .40: mean .5, deviations .02 .08 -.1, their squares .0004 + .0064 + .01 = .0168, halved .0084.
    assert plain["final_accuracy"] == pytest.approx(0.5)
    assert plain["final_accuracy_sd"] == pytest.approx(math.sqrt(0.0084))
    assert plain["val_accuracy"] == pytest.approx(0.5)  # of round 4 alone: round 2 is not among the last two
    assert (plain["difference"], plain["agree"]) == (None, None)
    # .10 .08 .06: mean .08, deviation .02, half of the interval 4.303 * .02 / sqrt(3).
    half = T_2 * 0.02 / math.sqrt(3)
    assert wsm["difference"] == pytest.approx(0.08)
    assert wsm["difference_low"] == pytest.approx(0.08 - half, abs=1e-5)
    assert wsm["difference_high"] == pytest.approx(0.08 + half, abs=1e-5)
    assert (wsm["agree"], wsm["seeds"], wsm["state"]) == (3, 3, "finished")
    assert next(iter(wsm)) == "objective"
    assert "local.lr" not in wsm  # which does not vary


def test_an_option_is_chosen_on_validation_data_where_test_data_would_choose_otherwise(tmp_path: Path) -> None:
    numbers = {
        ("cross_entropy", 0.1): [([0.9, 0.50], 0.9), ([0.9, 0.50], 0.9)],  # the best by test, and by early rounds
        ("cross_entropy", 0.2): [([0.1, 0.70], 0.3), ([0.1, 0.40], 0.4)],  # the best by validation: mean .55
        ("wsm", 0.1): [([0.1, 0.60], 0.5), ([0.1, 0.60], 0.5)],
        ("wsm", 0.2): [([0.1, 0.60], 0.8), ([0.1, 0.60], 0.8)],  # as good: the first stays
    }
    design = study(tmp_path / "s", numbers, choose=["local.lr"], baseline={"objective": "cross_entropy"})
    table = table_of(tmp_path / "s", design)
    found = [(line["objective"], line["local.lr"], line["final_accuracy"]) for line in table.records()]
    assert found == [("cross_entropy", 0.2, pytest.approx(0.35)), ("wsm", 0.1, pytest.approx(0.5))]
    assert table.records()[1]["difference"] == pytest.approx(0.15)  # to the chosen baseline
    assert "rate (chosen)" in study_markdown(table)
    assert any("0.1, 0.2" in note and "test data had no say" in note for note in table.notes)


def test_a_value_with_a_run_that_diverged_is_not_chosen(tmp_path: Path) -> None:
    cells = cells_of(load_design("demo", {"local.lr": [0.1, 0.2, 0.3]}, seeds=2))
    scores = dict(zip((cell.name for cell in cells), ([0.3, 0.3], [0.9, None], [0.4, 0.2])))
    assert [cell.settings["local.lr"] for cell in choose_by_validation(cells, ["local.lr"], scores)] == [0.1]


def test_cells_that_did_not_end_say_so_and_the_others_stand(tmp_path: Path) -> None:
    design = study(tmp_path / "s", {("cross_entropy", 0.1): PLAIN, ("wsm", 0.1): WSM})
    folder, (plain, wsm) = StudyFolder(tmp_path / "s"), cells_of(design)
    summary = folder.run(plain.slots[1]) / "summary.json"
    summary.write_text(json.dumps({"status": "diverged", "rounds_done": 6, "warnings": []}))
    folder.note_failure(wsm.slots[0], "ValueError; see seed-0.log")
    first, second = table_of(tmp_path / "s", design).records()
    assert (first["seeds"], first["state"]) == (2, "diverged in round 7 (seed 1)")
    assert first["final_accuracy"] == pytest.approx(0.46)
    assert (second["seeds"], second["state"]) == (2, "failed: ValueError; see seed-0.log (seed 0)")


def test_the_texts_have_the_same_numbers(tmp_path: Path) -> None:
    numbers = {("cross_entropy", 0.1): PLAIN, ("wsm", 0.1): WSM}
    design = study(tmp_path / "s", numbers, baseline={"objective": "cross_entropy"})
    table = table_of(tmp_path / "s", design)
    lines = list(csv.DictReader(io.StringIO(study_csv(table))))
    assert [float(line["final_accuracy"]) for line in lines] == [0.5, 0.58]
    assert (
        "| WSM | 3 | **58.0 ± 10.6** | **70.0 ± 0.0** | +10.0 ± 0.0 | +8.0 | +3.0 to +13.0 | 0.020 | 3/3 |"
        in study_markdown(table)
    )
    assert r"cross entropy & 3 & 50.0 $\pm$ 9.2 & 50.0 $\pm$ 10.0" in study_latex(table)
    assert study_latex(table).count(r"\\") == 3


def test_any_row_is_the_baseline_of_all_and_p_values_are_corrected(tmp_path: Path) -> None:
    # Differences of .1 to the baseline, with deviations .02 and .01: t is 8.660 and 17.321.
    numbers = {
        ("cross_entropy", 0.1): PLAIN,
        ("cross_entropy", 0.2): [(val, test + more) for (val, test), more in zip(PLAIN, (0.08, 0.10, 0.12))],
        ("wsm", 0.1): [(val, test + more) for (val, test), more in zip(PLAIN, (0.09, 0.10, 0.11))],
        ("wsm", 0.2): [(val, test) for val, test in PLAIN],
    }
    asked = {"baseline": {"objective": "cross_entropy", "local.lr": 0.1}, "holm": True}
    table = table_of(tmp_path / "s", study(tmp_path / "s", numbers, **asked))
    p_values = [1 - t / math.sqrt(t**2 + 2) for t in (0.1 / (0.02 / math.sqrt(3)), 0.1 / (0.01 / math.sqrt(3)))]
    by_row = {(line["objective"], line["local.lr"]): line for line in table.records()}
    assert by_row["cross_entropy", 0.1]["p"] is None
    assert by_row["cross_entropy", 0.2]["p"] == pytest.approx(p_values[0])
    assert by_row["wsm", 0.1]["p"] == pytest.approx(p_values[1])
    assert by_row["wsm", 0.2]["p"] == 1.0
    # Three rows: the least is tripled, the next doubled, the last stays.
    assert by_row["wsm", 0.1]["p_holm"] == pytest.approx(3 * p_values[1])
    assert by_row["cross_entropy", 0.2]["p_holm"] == pytest.approx(2 * p_values[0])
    assert by_row["wsm", 0.2]["p_holm"] == 1.0
    assert "| p | p (Holm) | agree |" in study_markdown(table)


def test_the_best_is_in_bold_where_it_is_seen_to_be_better(tmp_path: Path) -> None:
    plain, better = [([0.1, 0.5], 0.5), ([0.1, 0.5], 0.6)], [([0.1, 0.5], 0.7), ([0.1, 0.5], 0.7)]
    numbers = {("cross_entropy", 0.1): plain, ("wsm", 0.1): better, ("mask", 0.1): better}
    table = table_of(tmp_path / "s", study(tmp_path / "s", numbers))
    assert study_latex(table).count(r"\textbf{70.0 $\pm$ 0.0}") == 2  # equal ones are both the best
    assert study_markdown(table).count("**") == 4  # validation and forgetting are the same everywhere
    assert "Bold: the best mean" in study_markdown(table)
    assert "**" not in study_csv(table)


def test_rows_of_other_data_have_a_best_of_their_own(tmp_path: Path) -> None:
    grid = {"partition.alpha": [0.1, 1.0], "objective": ["cross_entropy", "wsm"]}
    design = load_design("demo", grid, settings={"rounds": 4})
    place, accuracy = StudyFolder.of(tmp_path / "s", design), iter([0.2, 0.4, 0.8, 0.6])
    for run in plan(design, cells_of(design)):
        write_run(place.run(run.slot), run.recipe.tree(), [0.1, 0.5], next(accuracy))
    bold = [line.count("**") for line in study_markdown(table_of(tmp_path / "s", design)).splitlines()[2:6]]
    assert bold == [0, 2, 2, 0]


def test_comparing_pairs_by_seeds_and_says_when_an_accuracy_is_reached(tmp_path: Path) -> None:
    study(tmp_path / "s", {("cross_entropy", 0.1): PLAIN, ("wsm", 0.1): WSM})
    plain, wsm = compare([tmp_path / "s"], [0.5]).records()
    assert (wsm["difference"], wsm["agree"], wsm["pairs"]) == (pytest.approx(0.08), 3, 3)
    # .50, .60 and .40 after round 4 on validation data: two of three get there, with 4 * 15 bytes and 4 * 2 s.
    assert plain["to_accuracy"] == [
        {"accuracy": 0.5, "runs": 3, "reached": 2, "rounds": 4, "bytes": 60, "seconds": 8.0}
    ]
    runs = sorted((tmp_path / "s" / "runs").glob("objective=wsm*/*"))
    with pytest.raises(InputError, match="one method"):
        compare(runs)


def test_several_studies_are_one_table_with_any_baseline(tmp_path: Path, fedrecall) -> None:
    study(tmp_path / "a", {("cross_entropy", 0.1): PLAIN, ("wsm", 0.1): WSM})
    study(tmp_path / "b", {("cross_entropy", 0.2): PLAIN, ("mask", 0.2): WSM})
    found = compare([tmp_path / "a", tmp_path / "b"], baseline={"objective": "cross_entropy"}, holm=True)
    # Two baselines, one at each rate; .08 to each, with the p-value .0202 of the test above, doubled.
    assert [line["difference"] for line in found.records()] == [None, pytest.approx(0.08)] * 2
    assert [line["p_holm"] for line in found.records()] == [None, pytest.approx(0.0404, abs=1e-4)] * 2
    one = compare([tmp_path / "a", tmp_path / "b"], baseline={"objective": "mask"}).records()
    assert [line["difference"] for line in one] == [
        pytest.approx(-0.08), pytest.approx(0), pytest.approx(-0.08), None,
    ]  # fmt: skip
    words = [tmp_path / "a", tmp_path / "b", "--baseline", "objective=cross_entropy,local.lr=0.1"]
    done = fedrecall("compare", *words, "--out", tmp_path / "both.tex")
    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "both.tex").read_text().count(r"\\") == 5
    assert (tmp_path / "both.tex").read_text().count(r"\textbf{58.0") == 2
    assert fedrecall("compare", *words, "--out", tmp_path / "both.txt").code == 2
    nobody = fedrecall("compare", tmp_path / "a", "--baseline", "objective=fedlc")
    assert "the baseline is objective=fedlc, but no method has these settings" in nobody.err


def test_the_table_and_the_page_have_the_same_validation_accuracy(tmp_path: Path) -> None:
    # Rounds 2 and 4 are evaluated, and the last three are tested: .3 and .5 count, not .5 alone.
    path = tmp_path / "run"
    write_run(path, load_design_recipe(), [0.3, 0.5], 0.4)
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "final_accuracy_rounds": 3}))
    shown = result_table(group_methods([RunRecord(path)], titles()))
    (cell,) = [
        cell for column, cell in zip(shown.columns, shown.blocks[0].rows[0].cells) if column.key == "val_accuracy"
    ]
    assert cell.text == "40.0"
    assert last_validation(RunRecord(path)) == pytest.approx(0.4)


def load_design_recipe() -> dict:
    design = load_design("demo", settings={"rounds": 4})
    return plan(design, cells_of(design))[0].recipe.tree()


def test_a_study_of_another_day_is_opened_by_its_folder(tmp_path: Path) -> None:
    study(tmp_path / "s", {("cross_entropy", 0.1): PLAIN, ("wsm", 0.1): WSM})
    opened = Study(tmp_path / "s")
    table = opened.table()
    lines = table if isinstance(table, list) else table.to_dict("records")
    assert [line["final_accuracy"] for line in lines] == [pytest.approx(0.5), pytest.approx(0.58)]
    assert [len(runs) for runs in opened.runs.values()] == [3, 3]
    assert "6 of 6" in repr(opened)
