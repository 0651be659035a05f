"""The commands and the Python of docs/trackers.md run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from fedrecall.recipe.recipe import Recipe
from fedrecall.trackers import TRACKER, TRACKERS

PAGE = (Path(__file__).parents[2] / "docs" / "trackers.md").read_text(encoding="utf-8")


def test_the_page_names_every_tracker_with_its_options() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]*)\|$", PAGE, re.MULTILINE)
    assert {name for name, _ in rows} == set(TRACKERS)
    for name, options in rows:
        known = set(TRACKER.options(TRACKERS[name]))
        assert set(re.findall(r"`(\w+)`", options)) - {"online", "offline"} == known


def test_the_recipe_of_the_page_is_one() -> None:
    tree = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])
    assert Recipe(**tree).trackers == tree["trackers"]


@pytest.mark.heavy
def test_the_commands_and_the_python_of_the_page_run(fedrecall, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for line in re.search(r"```console\n(.*?)```", PAGE, re.DOTALL)[1].splitlines():
        done = fedrecall(*shlex.split(line)[1:], "--quiet", "--no-report")
        assert (done.code, done.err) == (0, "")
    exec(compile(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], "docs/trackers.md", "exec"), {})
    for name in ("seen", "seen-too"):
        assert list((tmp_path / "runs" / name / "tensorboard").glob("events.*"))
