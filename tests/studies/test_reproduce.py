"""Tables and figures made again: what is published beside what is ours, worked out by hand."""

from __future__ import annotations

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from fedrecall.cli.reproduce import reproduce
from fedrecall.errors import InputError
from fedrecall.recipe.layers import load_recipe
from fedrecall.report.intervals import welch_interval
from fedrecall.report.wording import MINUS
from fedrecall.runs.reader import RunRecord
from fedrecall.studies.design import load_design, shipped_studies
from fedrecall.studies.folder import StudyFolder
from fedrecall.studies.published import published_source
from fedrecall.studies.published_table import published_tables
from fedrecall.studies.reproduce import Reproduction
from fedrecall.studies.reuse import reuse_finished_runs
from fedrecall.studies.selection import select_runs

# 97.5 % points of Student's t from a table, by degrees of freedom.
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


def test_welch_interval_is_that_of_paper_and_pencil() -> None:
    # Ours .50 .54 .52: mean .52, variance .0004, over 3 seeds .000133. Theirs .50, .03 over 3: .0009 / 3 = .0003.
    # Degrees of freedom: (.000433)^2 / (.000133^2 / 2 + .0003^2 / 2) = 3.48, rounded down 3.
    half = T[3] * math.sqrt(0.0004 / 3 + 0.0009 / 3)
    low, high = welch_interval([0.50, 0.54, 0.52], 0.50, 0.03, 3) or (0, 0)
    assert (low, high) == pytest.approx((0.02 - half, 0.02 + half), abs=1e-5)
    assert welch_interval([0.5], 0.5, 0.03, 3) is None
    assert welch_interval([0.5, 0.5], 0.5, 0.0, 3) is None


def write_result(path: Path, recipe: dict, accuracy: float) -> None:
    path.mkdir(parents=True)
    (path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    rounds = recipe["rounds"]
    line = {"round": rounds, "val_accuracy": accuracy, "test_accuracy": accuracy}
    (path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    summary = {
        "status": "finished",
        "rounds_done": rounds,
        "final_accuracy": accuracy,
        "final_accuracy_rounds": 100,
    }
    (path / "summary.json").write_text(json.dumps({**summary, "warnings": []}))


def made(
    folder: Path, name: str, accuracy: dict[tuple[str, ...], list[float]], keys: tuple[str, ...], **options
) -> Reproduction:
    """A shipped study with results for the cells that have these values of the keys, a number for each seed."""
    reproduction = Reproduction.of(name, out=folder, **options)
    place, values = StudyFolder.of(folder, reproduction.asked.design), {}
    for cell in reproduction.cells():
        values[cell.name] = accuracy.get(tuple(str(cell.settings.get(key)) for key in keys), [])
    for run in reproduction.asked.runs:
        if len(values[run.slot.cell]) > run.slot.seed:
            write_result(place.run(run.slot), run.recipe.tree(), values[run.slot.cell][run.slot.seed])
    runs = [run for run in reproduction.asked.runs if values[run.slot.cell]]
    return replace(reproduction, asked=replace(reproduction.asked, runs=runs))


def test_table_5_is_set_beside_the_paper(tmp_path: Path) -> None:
    keys = ("recipe", "objective", "local.lr")
    ours = {
        ("lenet-cifar10", "cross_entropy", "0.01"): [0.6, 0.62, 0.61],
        ("lenet-cifar10", "wsm", "0.01"): [0.65, 0.63, 0.64],
    }
    cells, pairs = published_tables(made(tmp_path / "s", "table5", ours, keys)).values()
    with (Path(__file__).parents[2] / "src/fedrecall/report/paper_results.csv").open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    theirs = {
        row["objective"]: (float(row["accuracy"]), float(row["std"]))
        for row in rows
        if (row["model"], row["dataset"], row["lr"]) == ("lenet", "cifar10", "0.01")
    }
    for line, objective, mean in zip(cells.rows, ("ce", "wsm"), (0.61, 0.64)):
        accuracy, sd = theirs[objective]
        shown = dict(zip(cells.heading, line))
        assert shown["ours, %"] == f"{100 * mean:.1f} ± 1.0"
        assert shown["published, %"] == f"{100 * accuracy:.1f} ± {100 * sd:.1f}"
        assert shown["difference, points"].replace(MINUS, "-") == f"{100 * (mean - accuracy):+.1f}"
    (pair,) = pairs.rows
    shown = dict(zip(pairs.heading, pair))
    # .05 .01 .03: mean .03, deviation .02, half of the interval 4.303 * .02 / sqrt(3) = .0497.
    assert shown["WSM less cross-entropy, points"] == "+3.0"
    assert shown["95 % interval"] == f"{MINUS}2.0 to +8.0"
    assert (shown["agree"], shown["pairing"]) == ("3/3", "like for like")
    expected = 100 * (theirs["wsm"][0] - theirs["ce"][0])
    assert shown["published"].replace(MINUS, "-") == f"{expected:+.1f}"


def test_a_chosen_rate_is_set_beside_the_best_published_one(tmp_path: Path) -> None:
    rates = ["0.07", "0.05", "0.03", "0.01", "0.007", "0.005", "0.003", "0.001"]
    ours = {
        ("lenet-cifar100", objective, rate): [0.3 if rate == "0.03" else 0.2] * 3
        for rate in rates
        for objective in ("cross_entropy", "wsm")
    }
    cells, _ = published_tables(made(tmp_path / "s", "table3", ours, ("recipe", "objective", "local.lr"))).values()
    wsm = dict(zip(cells.heading, cells.rows[1]))
    assert wsm["rate (chosen)"] == "0.03"
    assert wsm["published, %"].startswith("27.4 ")  # Table 3 of the paper: .274 for CIFAR-100 with WSM
    assert any("the best of its values, at rate 0.01" in note for note in cells.notes)


def test_norms_are_paired_like_for_like_beside_the_papers_own_way(tmp_path: Path) -> None:
    keys = ("recipe", "objective", "local.lr", "model.norm")
    numbers = {
        ("cross_entropy", "group"): 0.82,
        ("cross_entropy", "batch"): 0.84,
        ("wsm", "group"): 0.80,
        ("wsm", "batch"): 0.86,
    }
    ours = {("resnet18-cifar10", o, "0.05", n): [a, a, a] for (o, n), a in numbers.items()}
    _, pairs = published_tables(made(tmp_path / "s", "table4", ours, keys)).values()
    found = {
        row[pairs.heading.index("pairing")]: row[pairs.heading.index("WSM less cross-entropy, points")]
        for row in pairs.rows
    }
    assert found == {
        "like for like, group norm": f"{MINUS}2.0",
        "like for like, batch norm": "+2.0",
        "the paper's pairing: WSM with batch, FedAvg with group norm": "+4.0",
    }


def test_a_shorter_version_is_marked_and_never_set_against_published_numbers(tmp_path: Path) -> None:
    ours = {("lenet-cifar10", "wsm", "0.01"): [0.6]}
    study = made(tmp_path / "s", "table5", ours, ("recipe", "objective", "local.lr"), rounds=12)
    (cells,) = published_tables(study).values()
    assert "published, %" not in cells.heading
    assert "A shorter version of 12 rounds" in cells.notes[0]


def test_figures_are_shrunk_by_clients_and_probes_too() -> None:
    shrink = ["partition.clients=10", "clients_per_round=2", "forgetting.every=3"]
    small = Reproduction.of("fig-forgetting", ["seeds=1"], rounds=6, shrink=shrink)
    for run in small.asked.runs:
        assert (run.recipe.rounds, run.recipe.partition["clients"], run.recipe.clients_per_round) == (6, 10, 2)
        assert run.recipe.forgetting.every == 3
    assert small.shortened == "6 rounds, partition.clients=10, clients_per_round=2, forgetting.every=3"
    assert (
        small.asked.path.name == "fig-forgetting-6-rounds-partition.clients=10-clients_per_round=2-forgetting.every=3"
    )
    assert Reproduction.of("fig-forgetting").shortened == ""


def test_a_part_is_chosen_by_words() -> None:
    runs = Reproduction.of("table5").asked.runs
    kept = select_runs(runs, ["dataset=cifar100", "lr=0.01,0.03", "objective=wsm", "seeds=1"])
    assert [(run.recipe.local.lr, run.slot.seed) for run in kept] == [(0.03, 0), (0.01, 0)]
    assert {run.slot.seed for run in select_runs(runs, ["seeds=0,2"])} == {0, 2}
    with pytest.raises(InputError, match=r"lr is 0\.2, which is not in this part of the study; there are: 0\.07, "):
        select_runs(runs, ["lr=0.2"])
    with pytest.raises(InputError, match="seeds is 7; up to 3, or some of 0, 1, 2, was expected"):
        select_runs(runs, ["seeds=7"])


def test_published_results_of_somebody_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "theirs.csv"
    file.write_text(
        "# from somewhere\nobjective,local.lr,accuracy,sd,seeds\nwsm,0.05,0.7,0.01,5\ncross_entropy,,0.6,0.02,4\n"
    )
    source = published_source(str(file))
    recipes = [
        load_recipe("demo", [f"objective={o}", f"local.lr={r}"]) for o in ("wsm", "cross_entropy") for r in (0.05, 0.1)
    ]
    found = [(number.accuracy, number.seeds) if (number := source(recipe)) else None for recipe in recipes]
    assert found == [(0.7, 5), None, (0.6, 4), (0.6, 4)]
    file.write_text("objective,accuracy\nwsm,much\n")
    with pytest.raises(InputError, match=r"row 1 of .* has no numbers accuracy, sd and seeds"):
        published_source(str(file))
    with pytest.raises(InputError, match="cannot be read"):
        published_source(str(tmp_path / "nothing.csv"))


def test_what_a_study_beside_has_finished_is_taken_over(tmp_path: Path) -> None:
    keys = ("recipe", "objective", "local.lr")
    made(tmp_path / "table5", "table5", {("lenet-cifar10", "wsm", "0.01"): [0.6, 0.61, 0.62]}, keys)
    other, runs = StudyFolder.of(tmp_path / "table3", load_design("table3")), Reproduction.of("table3").asked.runs
    adopted = reuse_finished_runs(other, runs)
    assert sorted((run.recipe.data["name"], run.recipe.local.lr, run.slot.seed) for run in adopted) == [
        ("cifar10", 0.01, seed) for seed in range(3)
    ]
    assert all(other.state(run.slot).kind == "finished" for run in adopted)
    assert reuse_finished_runs(other, runs) == []


def test_unknown_things_and_wrong_parts_are_sentences() -> None:
    for words, said in (
        (["tabel3"], "there is nothing called 'tabel3' to reproduce; did you mean 'table3'?"),
        (["table5", "lr=3", "--dry-run"], "lr is 3, which is not in this part of the study"),
        (["table5", "--rounds", "0", "--dry-run"], "--rounds is 0; at least 1 was expected"),
        (["table5", "--shrink", "clients", "--dry-run"], "--shrink is 'clients'; KEY=VALUE was expected"),
        (["table5", "--shrink", "local.lr=1", "--dry-run"], "the study varies local.lr; local.lr=VALUE alone selects"),
    ):
        found = CliRunner().invoke(reproduce, words)
        assert isinstance(found.exception, InputError)
        assert said in str(found.exception)


TINY = """
about: LeNet on Fashion-MNIST
recipe: demo
grid: {local.lr: [0.05, 0.1], objective: [cross_entropy, wsm]}
settings: {rounds: 6, local.steps: 6, evaluation: {every: 2, test_last: 2}, partition.clients: 5}
seeds: 2
baseline: {objective: cross_entropy}
published: theirs.csv
"""
THEIRS = "objective,local.lr,accuracy,sd,seeds\nwsm,0.1,0.3,0.02,3\ncross_entropy,0.1,0.2,0.01,3\n"


@pytest.mark.slow
def test_a_reproduction_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(TINY)
    Path("theirs.csv").write_text(THEIRS)
    planned = json.loads(CliRunner().invoke(reproduce, ["tiny.yaml", "--dry-run", "--json"]).stdout)
    assert (planned["runs"], planned["done"], Path("runs").exists()) == (8, 0, False)
    assert planned["seconds"] > 0
    first = CliRunner().invoke(reproduce, ["tiny.yaml", "--json"])
    found = json.loads(first.stdout)
    path = Path(found["path"])
    runs = {
        objective: [RunRecord(path / "runs" / f"local.lr=0.1,objective={objective}" / f"seed-{s}") for s in (0, 1)]
        for objective in ("cross_entropy", "wsm")
    }
    ours = {name: [run.summary["final_accuracy"] for run in each] for name, each in runs.items()}
    row = next(row for row in found["table"] if (row["rate"], row["objective"]) == ("0.1", "WSM"))
    mean, sd = np.mean(ours["wsm"]), np.std(ours["wsm"], ddof=1)
    assert row["ours, %"] == f"{100 * mean:.1f} ± {100 * sd:.1f}"
    mine, theirs = sd**2 / 2, 0.02**2 / 3
    freedom = int((mine + theirs) ** 2 / (mine**2 / 1 + theirs**2 / 2))
    half = T[max(1, freedom)] * math.sqrt(mine + theirs)
    low, high = (float(text) for text in row["95 % interval (Welch)"].replace(MINUS, "-").split(" to "))
    assert (low, high) == pytest.approx((100 * (mean - 0.3 - half), 100 * (mean - 0.3 + half)), abs=0.06)
    pair = next(row for row in found["pairs"] if row["rate"] == "0.1")
    differences = np.array(ours["wsm"]) - np.array(ours["cross_entropy"])
    half = T[1] * np.std(differences, ddof=1) / math.sqrt(2)
    low, high = (float(text) for text in pair["95 % interval"].replace(MINUS, "-").split(" to "))
    middle = np.mean(differences)
    assert (low, high) == pytest.approx((100 * (middle - half), 100 * (middle + half)), abs=0.06)
    assert pair["published"] == "+10.0"
    assert (path / "published-table.tex").read_text().count(r"\\") == 5

    # Its small records alone are enough: nothing is trained again.
    records = tmp_path / "records"
    shutil.copytree(path, records, ignore=shutil.ignore_patterns("checkpoints", "clients", "*.safetensors", "lock"))
    before = {file: file.read_bytes() for file in records.rglob("metrics.jsonl")}
    again = json.loads(CliRunner().invoke(reproduce, ["tiny.yaml", "--out", str(records), "--json"]).stdout)
    assert (again["done"], again["seconds"]) == (8, 0)
    assert (again["table"], again["pairs"]) == (found["table"], found["pairs"])
    assert {file: file.read_bytes() for file in records.rglob("metrics.jsonl")} == before


@pytest.mark.slow
def test_figures_are_drawn_of_shorter_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = {
        "recipe": "demo",
        "grid": {"objective": ["cross_entropy", "wsm"]},
        "settings": {"rounds": 50, "local.steps": 2, "partition.clients": 5, "forgetting.every": 5},
        "figures": ["heatmaps", "forgetting", "convergence"],
    }
    Path("mine.yaml").write_text(yaml.safe_dump(study))
    found = json.loads(CliRunner().invoke(reproduce, ["mine.yaml", "--rounds", "10", "--json"]).stdout)
    names = sorted(Path(path).name for path in found["figures"] if path.endswith(".png"))
    assert names == [
        "convergence.png",
        "forgetting-round-00003.png",
        "forgetting-round-00009.png",
        "forgetting.png",
    ]
    Path("parts.yaml").write_text(
        "recipe: demo\ngrid: {partition.alpha: [0.1, 10.0]}\nseeds: 1\nfigures: [class-shares]\n"
    )
    found = json.loads(CliRunner().invoke(reproduce, ["parts.yaml", "--json"]).stdout)
    assert [Path(path).name for path in found["figures"]] == [f"class-shares.{kind}" for kind in ("png", "svg", "pdf")]


@pytest.mark.slow
@pytest.mark.real_data
def test_the_example_of_the_help_is_planned_on_real_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = str(reproduce.epilog).split()[3:]  # Example: fedrecall reproduce ..
    planned = json.loads(CliRunner().invoke(reproduce, [*words, "--json"]).stdout)
    assert (planned["runs"], planned["done"]) == (4, 0)  # two rates with two objectives


@pytest.mark.slow
@pytest.mark.real_data
def test_table_3_is_planned_on_real_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = Reproduction.of("table3", ["dataset=cifar10"])
    planned = made.plan()
    assert (len(planned.states), planned.done) == (48, 0)
    assert planned.seconds > 48 * 60 / made.asked.jobs  # 4000 rounds of ten clients are no matter of a minute
    assert not (tmp_path / "runs").exists()


def test_every_study_that_comes_along_can_be_named() -> None:
    assert {"table1", "table2", "table3", "table4", "table5", "fig-forgetting", "fig-convergence"} <= set(
        shipped_studies()
    )
    assert {"fig-ablation-alpha", "fig-ablation-fraction", "fig-ablation-steps", "fig-partitions"} <= set(
        shipped_studies()
    )
