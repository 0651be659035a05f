"""A sweep over Python objects: the same table, resume and study as over recipes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fedrecall import FedAvg, Federation, Iid, InputError, Scaffold, federate, sweep
from fedrecall.studies.sweep import Study
from fedrecall.studies.table_texts import study_csv

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = np.arange(60) % 3


def split(seed: int = 0) -> Federation:
    return Federation.from_arrays(X, Y, test=(X[:9], Y[:9]), partition=Iid(clients=6, validation=0.2, seed=seed))


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 3)


def losses(scale: float):
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return scale * torch.nn.functional.cross_entropy(logits, labels)

    return loss


SETTINGS = {"rounds": 2, "clients_per_round": 2, "local": {"steps": 2, "lr": 0.1}, "evaluation.every": 1}
# Two functions that a recipe cannot tell apart, and a name.
GRID = {"objective": {"half": losses(0.5), "twice": losses(2.0), "plain": "cross_entropy"}}


def study(folder: Path, grid: dict | None = None, **more) -> Study:
    given = {"seeds": 2, "settings": SETTINGS, "report": False, "out": folder, "model": net(), "federation": split()}
    return sweep(grid=grid or GRID, **{**given, **more})


def records(made: Study) -> list[dict]:
    table = made.table()
    return table if isinstance(table, list) else table.to_dict("records")


def test_each_run_is_what_federate_makes_of_the_same_objects(tmp_path: Path) -> None:
    made = study(tmp_path / "s", baseline={"objective": "plain"})
    assert [line["objective"] for line in records(made)] == ["half", "twice", "plain"]
    assert [len(runs) for runs in made.runs.values()] == [2, 2, 2]
    given = {**SETTINGS, "evaluation": {"every": 1}}
    del given["evaluation.every"]
    alone = federate(net(), split(), objective=losses(2.0), seed=1, out=tmp_path / "alone", **given)
    there = tmp_path / "s/runs/objective=twice/seed-1"
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (there / name).read_bytes() == (alone.path / name).read_bytes()
    half = (tmp_path / "s/runs/objective=half/seed-1/metrics.jsonl").read_bytes()
    assert half != (there / "metrics.jsonl").read_bytes()
    opened = Study(tmp_path / "s")
    assert study_csv(opened.result()) == (made.path / "table.csv").read_text()
    assert "6 of 6" in repr(opened)


def test_the_same_call_keeps_what_is_done_and_a_longer_one_adds(tmp_path: Path) -> None:
    made = study(tmp_path / "s")
    times = {path: path.stat().st_mtime_ns for path in made.path.glob("runs/*/*/summary.json")}
    more = {"objective": {**GRID["objective"], "wsm": "wsm"}}
    grown = study(tmp_path / "s", more, seeds=3)
    assert len(times) == 6
    assert times == {path: path.stat().st_mtime_ns for path in times}
    assert [len(runs) for runs in grown.runs.values()] == [3, 3, 3, 3]


def test_a_killed_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = study(tmp_path / "whole", seeds=1)
    killed = study(tmp_path / "s", seeds=1)
    run = killed.path / "runs/objective=twice/seed-0"
    (run / "summary.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(lines[0])
    for path in (run / "checkpoints").glob("*00002*"):
        path.unlink()
    study(tmp_path / "s", seeds=1)
    for name in ("table.csv", "table.md", "table.tex"):
        assert (killed.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert (run / "metrics.jsonl").read_text() == "".join(lines)


def test_every_kind_of_object_may_be_a_choice(tmp_path: Path) -> None:
    grid = {
        "model": {"linear": net, "wider": lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 3))},
        "federation": {"six": split, "three": lambda seed: Federation.from_arrays(X, Y, partition=Iid(clients=3))},
        "algorithm": {"fedavg": FedAvg(), "scaffold": Scaffold()},
        "local.lr": [0.1],
    }
    made = study(tmp_path / "s", grid, seeds=1, model=None, federation=None, report=True)
    assert [len(runs) for runs in made.runs.values()] == [1] * 8
    assert (made.path / "report.html").exists()
    recipe = yaml.safe_load(next(made.path.glob("runs/model=wider,federation=three*scaff*/*/recipe.yaml")).read_text())
    assert (recipe["model"]["choice"], recipe["data"]["choice"]) == ("wider", "three")


def test_a_run_that_fails_says_why_and_the_others_go_on(tmp_path: Path, capsys) -> None:
    def broken(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if len(labels) == 7:
            raise KeyError("lost")
        return losses(1.0)(logits, labels)

    grid = {"objective": {"broken": broken, "plain": "cross_entropy"}}
    settings = {**SETTINGS, "local": {"steps": 2, "lr": 0.1, "batch_size": 7}}
    made = study(tmp_path / "s", grid, seeds=1, settings=settings, execution={"engine": "serial"})
    states = [line["state"] for line in records(made)]
    assert states[0].startswith("failed: ")
    assert states[1] == "finished"
    assert "lost" in next(made.path.glob("runs/objective=broken/*.log")).read_text()
    assert "objective=broken seed 0 failed" in capsys.readouterr().err


def test_wrong_requests_are_sentences_and_write_nothing(tmp_path: Path) -> None:
    for more, said in (
        ({"federation": None}, "federation is missing"),
        ({"grid": {"objective": [losses(1.0)]}}, "objective has objects among its values; a dict was expected"),
        ({"grid": {"model": {"a": net}}}, "model is given, and is in the grid too"),
        ({"grid": {"objective": {}}}, "objective has no choices"),
        ({"jobs": 2}, "jobs is 2, but runs of Python objects"),
        ({"recipe": "demo"}, "model is given, and so is the recipe 'demo'"),
        ({"grid": {"objective": {"good": "wsm", "bad": "wsn"}}}, "the cell 'objective=bad': objective is 'wsn'"),
    ):
        with pytest.raises(InputError) as found:
            study(tmp_path / "s", **more)
        assert said in str(found.value)
    with pytest.raises(InputError, match="named choices, which are for studies of Python objects"):
        sweep("demo", {"objective": {"a": "wsm"}}, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_other_data_and_another_study_in_the_folder_are_refused(tmp_path: Path) -> None:
    made = study(tmp_path / "s", seeds=1)
    with pytest.raises(InputError, match="is another one: rounds was 2 and is 3; choose another folder"):
        study(tmp_path / "s", seeds=1, settings={**SETTINGS, "rounds": 3})
    with pytest.raises(InputError, match="the model has other initial weights"):
        study(tmp_path / "s", seeds=1, model=torch.nn.Linear(3, 3))
    with pytest.raises(InputError, match="clients do not have the samples"):
        study(tmp_path / "s", seeds=1, federation=split(5))
    with pytest.raises(InputError, match="has another study, over objective"):
        study(tmp_path / "s", {"local.lr": [0.1]}, seeds=1)
    assert json.loads((made.path / "runs/objective=half/seed-0/summary.json").read_text())["status"] == "finished"


def test_studies_and_runs_are_seen_in_a_notebook(tmp_path: Path) -> None:
    grid = {"objective": {"<b>mine</b>": losses(0.5), "plain": "cross_entropy"}}
    made = study(tmp_path / "s", grid, seeds=2)
    page = made._repr_html_()
    assert page.count("<tr>") == 3
    assert "&lt;b&gt;mine&lt;/b&gt;" in page
    assert "<b>mine" not in page
    figure = made.plot("val_accuracy", "train_loss", band="range", size="5x2")
    assert [len(axes.lines) for axes in figure.axes] == [2, 2]
    assert figure.get_size_inches().tolist() == [5, 2]
    (first, _), *_ = made.runs.values()
    (line,) = first.plot().axes[0].lines
    assert line.get_ydata().tolist() == [100 * each["val_accuracy"] for each in first.metrics]
