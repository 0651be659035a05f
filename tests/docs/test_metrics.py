"""docs/metrics.md says what the table of metrics says, and its blocks run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fedrecall.measure.metrics import METRICS, SUMMARY, Metric
from fedrecall.recipe.recipe import Recipe

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def rows(section: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", SECTIONS[section], flags=re.MULTILINE))


@pytest.mark.parametrize(("section", "table"), [("Metrics", METRICS), ("The summary", SUMMARY)])
def test_the_page_and_the_table_use_the_same_words(section: str, table: dict[str, Metric]) -> None:
    assert list(rows(section).items()) == [(name, metric.words) for name, metric in table.items()]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page's Python leaves behind, each block going on from the one before."""
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("docs"))
        for kind, block in BLOCK.findall(PAGE):
            if kind == "python":
                exec(compile(block, "docs/metrics.md", "exec"), found)  # a block that raises fails the test
    return found


def test_the_python_runs(names: dict[str, Any]) -> None:
    assert names["F"].shape == (2, 6)
    assert np.isfinite(names["gained"]).all()


def test_the_arrays_are_those_of_a_file(names: dict[str, Any]) -> None:
    table = [line for line in SECTIONS["Forgetting"].splitlines() if line.startswith("| `")]
    listed = [name for line in table for name in re.findall(r"`(\w+)` \[", line)]
    always = listed[: listed.index("after_global_statistics")]
    assert sorted(always) == sorted(names["probe"])


def test_the_recipes_are_valid() -> None:
    recipes = [yaml.safe_load(block) for kind, block in BLOCK.findall(PAGE) if kind == "yaml"]
    forgetting, evaluation = (Recipe(**tree) for tree in recipes)
    assert (forgetting.forgetting.sample, evaluation.evaluation.metrics) == (50, ("my_metrics:top_2",))
