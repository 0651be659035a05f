"""docs/deploy.md: its keys and numbers are those of the code. Its commands are followed in tests/flower."""

from __future__ import annotations

import re
from pathlib import Path

from fedrecall.algorithms import ALGORITHMS
from fedrecall.recipe.settings import Execution
from fedrecall.storage.safe_parsing import yaml_value

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
ROOM = ROOT / "src" / "fedrecall" / "flower"


def test_every_key_of_a_node_is_read_by_the_code_and_none_is_left_out() -> None:
    table = PAGE.split("| key of `--node-config` | meaning |")[1].split("\n\n")[0]
    on_page = set(re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE))
    in_code = set(re.findall(r'(?:own(?:\.get\(|, )|own, )"([\w-]+)"', (ROOM / "node.py").read_text()))
    assert on_page == in_code


def test_the_settings_of_the_page_are_those_of_the_app() -> None:
    template = (ROOM / "template" / "pyproject.toml.jinja").read_text()
    for key in ("settings", "out", "resume", "test", "client-timeout", "clipping-norm", "nodes"):
        assert re.search(rf"^{key} = ", template, re.MULTILINE)
        assert key in PAGE


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert Execution().min_clients == 1
    assert "`execution.min_clients` (1)" in PAGE
    patience = float(re.search(r"^PATIENCE = (\S+)", (ROOM / "init.py").read_text(), re.MULTILINE)[1])
    assert f"({patience:.0f} in a generated app)" in PAGE


def test_the_file_about_a_nodes_data_is_one() -> None:
    tree = yaml_value(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])
    assert set(tree) <= {"data", "validation", "seed"}


def test_the_algorithms_for_flowers_mods_are_those_that_send_what_they_get() -> None:
    named = re.search(r"same tensors both ways: (.*?)\. `fixed", " ".join(PAGE.split()))[1]
    on_page = {name.lower() for name in re.findall(r"\w+", named) if name != "and"}
    sends_w = {
        name
        for name, kind in ALGORITHMS.items()
        if not (kind.pooled or kind.personal) and "finish" not in vars(kind) and "broadcast" not in vars(kind)
    }
    assert on_page == sends_w | {"feddyn", "moon"}
