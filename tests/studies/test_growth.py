"""A study grows: its runs are recognised by their recipes, however the request is spelled."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedrecall.errors import InputError
from fedrecall.studies.cells import cells_of, plan
from fedrecall.studies.design import load_design
from fedrecall.studies.folder import StudyFolder
from fedrecall.studies.growth import arrange
from fedrecall.studies.sweep import PlannedStudy, Study

TINY = ["rounds=2", "model=mlp", "model.hidden=[4]", "local.steps=1", "evaluation.test_last=1"]


def request(folder: Path, grid: dict | None = None, **given) -> PlannedStudy:
    return PlannedStudy.of("demo", load_design("demo", grid, **given), folder)


def begin(asked: PlannedStudy) -> None:
    """Write a begun run, with a file that says which it is, into each slot."""
    folder = StudyFolder.of(asked.path, asked.design)
    for run in asked.runs:
        path = folder.run(run.slot)
        path.mkdir(parents=True)
        (path / "recipe.yaml").write_text(yaml.safe_dump(run.recipe.tree()))
        (path / "metrics.jsonl").write_text('{"round": 1}\n')
        (path / "mark").write_text(run.key)
        Path(f"{path}.log").write_text(run.key)


def kinds(asked: PlannedStudy) -> list[str]:
    return [state.kind for state in asked.states().values()]


def moved(asked: PlannedStudy) -> dict[str, str]:
    """Arrange the folder; return the mark of each requested run that is there, by its title."""
    folder = StudyFolder.of(asked.path, asked.design)
    arrange(folder, asked.fit())
    folder.save(asked.design)
    marks = {run.slot.title: folder.run(run.slot) / "mark" for run in asked.runs}
    return {title: mark.read_text() for title, mark in marks.items() if mark.exists()}


def keys(asked: PlannedStudy) -> dict[str, str]:
    return {run.slot.title: run.key for run in asked.runs}


def test_more_seeds_and_more_values_keep_what_is_there(tmp_path: Path) -> None:
    begin(request(tmp_path / "s", {"objective": ["wsm"]}, seeds=2))
    more = request(tmp_path / "s", {"objective": ["wsm", "cross_entropy"], "local.lr": [0.1, 0.2]}, seeds=3)
    assert sorted(kinds(more)) == ["begun"] * 2 + ["waiting"] * 10
    there = moved(more)  # from the cell `all` to the cell of two settings
    assert set(there) == {f"objective=wsm,local.lr=0.1 seed {seed}" for seed in range(2)}
    assert there.items() <= keys(more).items()
    assert (tmp_path / "s/runs/objective=wsm,local.lr=0.1/seed-1.log").exists()
    assert not (tmp_path / "s/runs/all").exists()
    assert Study(tmp_path / "s").design.seeds == [0, 1, 2]


def test_the_same_study_is_the_same_however_it_is_spelled(tmp_path: Path) -> None:
    asked = request(None, {"objective": ["wsm", "mask"], "rounds": [4]}, seeds=2)  # type: ignore[arg-type]
    same = request(None, {"objective": ["wsm", "mask"]}, settings={"rounds": 4}, seeds=[0, 1])  # type: ignore[arg-type]
    other = request(None, {"objective": ["wsm", "mask"], "rounds": [5]}, seeds=2)  # type: ignore[arg-type]
    assert asked.path == same.path != other.path
    begin(PlannedStudy.of("demo", asked.design, tmp_path / "s"))
    spelled = request(tmp_path / "s", same.design.grid, settings={"rounds": 4}, seeds=2, choose=["objective"])
    assert kinds(spelled) == ["begun"] * 4
    assert moved(spelled) == keys(spelled)


def test_runs_that_stand_in_each_others_places_change_them(tmp_path: Path) -> None:
    one = request(tmp_path / "s", {"objective": ["wsm", "mask"]}, settings={"local.lr": 0.2})
    begin(one)
    both = request(tmp_path / "s", {"objective": ["wsm", "mask"], "local.lr": [0.1, 0.2]})
    assert len(moved(both)) == 2
    # Only the other rate: its cells have the names that those of the first had, and its runs are new.
    other = request(tmp_path / "s", {"objective": ["wsm", "mask"]}, settings={"local.lr": 0.1})
    assert kinds(other) == ["waiting", "waiting"]
    begin(other)
    again = request(tmp_path / "s", {"objective": ["wsm", "mask"]}, settings={"local.lr": 0.2})
    assert moved(again) == keys(again)
    assert moved(both) == keys(both)
    assert len(list((tmp_path / "s/runs").glob("*/*/mark"))) == 4


def test_another_study_in_the_folder_is_refused_with_the_difference(tmp_path: Path) -> None:
    begin(request(tmp_path / "s", {"local.lr": [0.1, 0.2]}))
    with pytest.raises(InputError, match=r"has another study: grid.local.lr was \[0.1, 0.2\] and is \[0.1, 0.3\]"):
        request(tmp_path / "s", {"local.lr": [0.1, 0.3]}).states()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        StudyFolder.of(tmp_path / "mine", load_design("demo"))


def test_a_study_of_which_nothing_has_run_blocks_nothing(tmp_path: Path) -> None:
    StudyFolder.of(tmp_path / "s", load_design("demo", {"rounds": [4, 8]}))
    assert kinds(request(tmp_path / "s", {"rounds": [5, 9]})) == ["waiting", "waiting"]


def test_a_recipe_that_has_changed_is_another_study(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: demo\nrounds: 4\n")
    design = load_design(str(tmp_path / "mine.yaml"))
    begin(PlannedStudy.of("mine", design, tmp_path / "s"))
    (tmp_path / "mine.yaml").write_text("base: demo\nrounds: 6\n")
    with pytest.raises(InputError, match=r"the run in .* is of another recipe: rounds was 4 and is 6"):
        PlannedStudy.of("mine", design, tmp_path / "s").states()


def test_what_names_code_is_not_taken_over_from_another_study(tmp_path: Path) -> None:
    (tmp_path / "own_loss_of_growth.py").write_text("def loss(logits, labels):\n    return logits.sum()\n")
    design = load_design("demo", {"objective": ["wsm", "own_loss_of_growth:loss"]})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        runs = plan(design, cells_of(design))
        assert [run.has_own_code for run in runs] == [False, True]
        done = PlannedStudy.of("demo", design, tmp_path / "a")
        begin(done)
        for run in done.runs:
            (StudyFolder(tmp_path / "a").run(run.slot) / "summary.json").write_text('{"status": "finished"}')
        states = list(PlannedStudy.of("demo", design, tmp_path / "b").states().values())
    assert [state.kind for state in states] == ["finished", "waiting"]
    assert "taken over from" in states[0].words


@pytest.mark.slow
def test_a_study_that_grew_has_the_tables_of_one_that_was_asked_at_once(fedrecall, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    words = ["sweep", "demo", *TINY, "--quiet"]
    assert fedrecall(*words, "objective=wsm", "--seeds", 1, "--out", "s").code == 0
    before = (tmp_path / "s/runs/all/seed-0/metrics.jsonl").stat().st_ino
    whole = ["objective=wsm,mask", "--seeds", 2]
    assert fedrecall(*words, *whole, "--out", "s").code == 0
    assert (tmp_path / "s/runs/objective=wsm/seed-0/metrics.jsonl").stat().st_ino == before
    assert fedrecall(*words, *whole, "--out", "other/s").code == 0
    for name in ("table.csv", "table.md", "table.tex"):
        assert (tmp_path / "s" / name).read_bytes() == (tmp_path / "other/s" / name).read_bytes()
    beside = fedrecall(*words[:-1], *whole, "--seeds", 3, "--out", "t")  # four of its six runs are those of `s`
    assert beside.code == 0
    assert "4 runs of other studies in '.' taken over" in beside.err
