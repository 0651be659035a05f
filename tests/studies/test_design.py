"""What a study asks, from words and from files, and the runs that it comes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrecall.errors import InputError
from fedrecall.studies.cells import PlannedRun, cells_of, plan
from fedrecall.studies.design import Design, grid_of, load_design


def runs_of(design: Design) -> list[PlannedRun]:
    return plan(design, cells_of(design))


def test_values_are_split_at_commas_outside_of_brackets_and_quotes() -> None:
    words = ["objective=cross_entropy,wsm", "model.hidden=[8,8],[16]", "x={a: 1, b: 2},3", "y='a, b',it's,\"c,d\""]
    assert grid_of(words) == {
        "objective": ["cross_entropy", "wsm"],
        "model.hidden": [[8, 8], [16]],
        "x": [{"a": 1, "b": 2}, 3],
        "y": ["a, b", "it's", "c,d"],
    }


@pytest.mark.parametrize("word", ["lr", "=1", "local.lr=", "local.lr=1,,2", "local.lr=[1"])
def test_a_word_that_is_no_setting_is_refused(word: str) -> None:
    with pytest.raises(InputError):
        grid_of([word])


def test_cases_are_crossed_with_the_grid_and_the_seeds(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("data: fashion_mini\nmodel: mlp\nrounds: 7\n")
    (tmp_path / "study.yaml").write_text(
        "recipe: demo\n"
        "grid: {objective: [cross_entropy, wsm]}\n"
        "cases:\n- {participation: 0.5, local: {lr: 0.2}}\n- {recipe: mine.yaml}\n"
        "settings: {rounds: 4}\nseeds: 2\nbaseline: {objective: cross_entropy}\n"
    )
    runs = runs_of(load_design(str(tmp_path / "study.yaml")))
    found = [
        (run.recipe.objective["name"], run.recipe.model["name"], run.recipe.participation, run.recipe.local.lr,
         run.recipe.rounds, run.recipe.seed, run.recipe.partition["seed"])
        for run in runs
    ]  # fmt: skip
    assert found == [
        ("cross_entropy", "lenet", 0.5, 0.2, 4, 0, 0),
        ("wsm", "lenet", 0.5, 0.2, 4, 0, 0),
        ("cross_entropy", "mlp", 0.1, 0.01, 4, 0, 0),
        ("wsm", "mlp", 0.1, 0.01, 4, 0, 0),
        ("cross_entropy", "lenet", 0.5, 0.2, 4, 1, 1),
        ("wsm", "lenet", 0.5, 0.2, 4, 1, 1),
        ("cross_entropy", "mlp", 0.1, 0.01, 4, 1, 1),
        ("wsm", "mlp", 0.1, 0.01, 4, 1, 1),
    ]
    assert len({run.slot.folder for run in runs}) == 8


def test_what_is_typed_wins_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("recipe: demo\ngrid: {rounds: [4, 8]}\ncases: [{local.lr: 1}, {local.lr: 2}]\n")
    design = load_design(str(tmp_path / "s.yaml"), {"rounds": [5], "local.lr": [0.5]}, seeds=[7])
    found = [(run.recipe.rounds, run.recipe.local.lr, run.recipe.seed) for run in runs_of(design)]
    assert found == [(5, 0.5, 7)]


def test_another_name_drops_the_options_of_the_one_before() -> None:
    design = load_design("demo", {"objective": ["cross_entropy"]}, settings={"objective": {"name": "wsm", "tau": 0.5}})
    (run,) = runs_of(design)
    assert run.recipe.objective["name"] == "cross_entropy"


def test_seeds_leave_a_partition_that_is_asked_for() -> None:
    for given in ({"same_partition": True}, {"settings": {"partition.seed": 0}}):
        runs = runs_of(load_design("demo", seeds=[4, 5], **given))
        assert [(run.recipe.seed, run.recipe.partition["seed"]) for run in runs] == [(4, 0), (5, 0)]


def test_cells_whose_values_no_folder_can_have_get_names_of_their_own() -> None:
    own = {"name": "wsm", "tau": 0.5}
    design = load_design("demo", {"objective": [own, "wsm", "cross_entropy"], "init": ["../x", "..?x"]})
    names = [cell.name for cell in cells_of(design)]
    assert len(set(names)) == 6
    assert not any("/" in name or "?" in name or name.startswith(".") for name in names)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"grid": {"local.lrr": [1, 2]}}, "the cell 'local.lrr=1': there is no key 'local.lrr'"),
        ({"grid": {"objective": ["wsm", "wsn"]}}, "the cell 'objective=wsn'"),
        ({"grid": {"seed": [1, 2]}}, "--seeds"),
        ({"grid": {"execution.workers": [1, 2]}}, "execution.workers"),
        ({"seeds": 0}, "seeds"),
        ({"seeds": [1, 1]}, "each seed once"),
        ({"seeds": "many"}, "seeds is 'many'"),
        ({"choose": ["local.lr"]}, "there are not several values"),
        ({"grid": {"objective": ["wsm", "mask"]}, "baseline": {"objective": "cross_entropy"}}, "no cell"),
        ({"grid": {"rounds": [4, 5]}, "choose": ["rounds"], "baseline": {"rounds": 4}}, "name another key"),
        (
            {"grid": {"local.lr": [1, 2]}, "choose": ["local.lr"], "settings": {"partition.validation": 0}},
            "never on test data",
        ),
    ],
)
def test_what_cannot_be_asked_is_said_before_anything_runs(given: dict, words: str) -> None:
    with pytest.raises(InputError) as error:
        runs_of(load_design("demo", **given))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_key_of_a_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("recipe: demo\ngird: {rounds: [4, 8]}\n")
    with pytest.raises(InputError, match="did you mean 'grid'"):
        load_design(str(tmp_path / "s.yaml"))


def test_a_run_whose_metric_is_the_users_has_code_of_theirs() -> None:
    own, shipped = runs_of(load_design("demo", grid={"evaluation.metrics": ["own:score", None]}, seeds=[0]))
    assert (own.has_own_code, shipped.has_own_code) == (True, False)
