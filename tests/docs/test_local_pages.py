"""Every block of docs/local-training.md and docs/participation.md runs as it stands, and their tables are complete."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from fedrecall.optimisers import OPTIMISERS
from fedrecall.participation import PARTICIPATIONS
from fedrecall.recipe.recipe import Recipe

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {name: (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("local-training", "participation")}
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
BLOCKS = [block for page in PAGES.values() for block in BLOCK.findall(page)]
COMMANDS = [line for kind, block in BLOCKS if kind == "console" for line in block.splitlines()]


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    assert {kind for kind, _ in BLOCKS} == {"console", "yaml", "python"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command: str, fedrecall, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGES["participation"], re.DOTALL):
        Path(name).write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    program, *words = shlex.split(command)
    assert program == "fedrecall"
    done = fedrecall(*words, "--quiet")
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("block", [block for kind, block in BLOCKS if kind == "yaml"])
def test_a_recipe_is_valid_and_says_what_it_reads(block: str) -> None:
    tree = yaml.safe_load(block)
    read = Recipe(**tree).tree()
    for section, given in tree.items():
        assert given.items() <= read[section].items()


@pytest.mark.parametrize(
    ("page", "heading", "listing"),
    [("local-training", "Optimisers", OPTIMISERS), ("participation", "Samplers", PARTICIPATIONS)],
)
def test_the_tables_name_everything_there_is(page: str, heading: str, listing: dict[str, type]) -> None:
    section = PAGES[page].split(f"\n## {heading}\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(listing)
