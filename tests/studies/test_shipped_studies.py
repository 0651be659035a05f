"""The shipped studies are the paper's tables and figures: each cell is a recipe, each published number a cell."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedrecall.recipe.layers import load_recipe, set_value
from fedrecall.recipe.recipe import Recipe
from fedrecall.report.paper_results import published, rows
from fedrecall.studies.design import dotted

FOLDER = Path(str(resources.files("fedrecall"))) / "studies" / "shipped"
STUDIES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))}
KEYS = {"about", "recipe", "grid", "cases", "seeds", "baseline", "choose", "published", "figures", "settings"}
CELLS = {  # counted by hand: cases x rates x norms x objectives, and the like
    "table1": 3 * 2 * 9,
    "table2": 4 * 2 * 2,
    "table2-readme": 4 * 2 * 2,
    "table3": 2 * 8 * 2,
    "table4": 3 * 9 * 2 * 2,
    "table5": 2 * 8 * 2,
    "fig-forgetting": 2,
    "fig-convergence": 4 * 2 * 2,
    "fig-ablation-alpha": 7 * 2,
    "fig-ablation-fraction": 7 * 2,
    "fig-ablation-steps": 6 * 2,
    "fig-partitions": 4,
}


def settings(study: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of each cell: every case with every combination of the grid."""
    grid, over = study.get("grid", {}), dotted(study.get("settings", {}))
    for case in study.get("cases", [{}]):
        for values in itertools.product(*grid.values()):
            yield {"recipe": study["recipe"], **over, **case, **dict(zip(grid, values))}


def recipe_of(cell: dict[str, Any]) -> Recipe:
    tree: dict[str, Any] = {}
    for key, value in cell.items():
        if key != "recipe":
            set_value(tree, key.split("."), value, key)
    return load_recipe(cell["recipe"], extra=tree)


def test_every_table_and_figure_has_its_study() -> None:
    assert set(STUDIES) == set(CELLS)


@pytest.mark.parametrize("name", CELLS)
def test_a_study_is_well_formed_and_every_cell_is_a_recipe_of_its_own(name: str) -> None:
    study = STUDIES[name]
    assert set(study) <= KEYS
    assert 0 < len(study["about"]) < 115
    assert study.get("published") == ("paper" if name.startswith("table") else None)
    assert bool(study.get("figures")) == name.startswith("fig-")
    assert study["seeds"] == (1 if name == "fig-partitions" else 3)
    cells = list(settings(study))
    assert len({recipe_of(cell).digest() for cell in cells}) == len(cells) == CELLS[name]
    baseline = study.get("baseline", {})
    assert any(baseline.items() <= cell.items() for cell in cells)
    assert set(study.get("choose", [])) <= set(study["grid"])


@pytest.mark.parametrize(("name", "table"), [("table4", "table4"), ("table5", "table5"), ("table2", "table2")])
def test_every_published_number_has_one_cell_and_every_cell_its_number(name: str, table: str) -> None:
    """By the settings in which the paper reports it, rounds, epochs and batches included."""
    found = [published(recipe_of(cell).tree()) for cell in settings(STUDIES[name])]
    assert all(number is not None and number.table == table for number in found)
    told = ("norm", "rate")  # in Table 2 the paper does not say with which
    assert {part for number in found if number for part in number.remark.split("; ")} <= {
        "", *(f"the paper does not say with which {what}" for what in told)
    }  # fmt: skip
    wanted = sorted((float(row["accuracy"]), float(row["std"])) for row in rows() if row["table"] == table)
    assert sorted((number.accuracy, number.sd) for number in found if number) == wanted


def test_table_1_is_the_part_of_table_4_that_the_paper_shows() -> None:
    found = {(cell["objective"], cell["model.norm"]) for cell in settings(STUDIES["table1"])}
    assert found == {("cross_entropy", "group"), ("wsm", "batch")}
    one, four = ({recipe_of(cell).digest() for cell in settings(STUDIES[name])} for name in ("table1", "table4"))
    assert one < four


def test_table_3_is_table_5_with_the_rate_chosen() -> None:
    assert {**STUDIES["table5"], "about": "", "choose": ["local.lr"]} == {**STUDIES["table3"], "about": ""}


def test_both_settings_of_table_2_differ_as_the_text_and_the_readme_do() -> None:
    text, readme = (
        [recipe_of(cell) for cell in settings(STUDIES[name]) if cell["data"] == "cifar10"]
        for name in ("table2", "table2-readme")
    )
    rates = {recipe.algorithm["name"]: recipe.local.lr for recipe in text}
    assert rates == {"fedavg": 0.05, "scaffold": 0.01, "fednova": 0.01, "fedprox": 0.01}
    assert {recipe.local.lr for recipe in readme} == {0.03}
    assert {recipe.model["norm"] for recipe in text} == {"batch"}
    assert {recipe.model["norm"] for recipe in readme} == {"group"}
    assert {recipe.local.weight_decay for recipe in text} == {1e-4}
    decays = {recipe.algorithm["name"]: recipe.local.weight_decay for recipe in readme}
    assert decays == {"fedavg": 1e-4, "scaffold": 1e-5, "fednova": 1e-5, "fedprox": 1e-5}
    prox = [recipe.algorithm for recipe in text + readme if recipe.algorithm["name"] == "fedprox"]
    assert prox == [{"name": "fedprox", "mu": 1.1}] * 4
