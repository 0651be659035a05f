"""docs/security.md has the commands that ask, their sentence, sections, variables and the ledger as they are."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
import pytest
import yaml

import fedrecall as package
from fedrecall.cli.main import fedrecall as program
from fedrecall.recipe.code_keys import CODE_KEYS
from fedrecall.runs import files
from fedrecall.runs.ledger import LEDGER

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
FOREIGN = PAGE.split("## A run's folder from someone else")[1].split("## What is not promised")[0]


def test_the_commands_that_ask_are_those_that_take_up_a_run() -> None:
    asking = {
        name
        for name, command in program.commands.items()
        if any("--trust" in parameter.opts for parameter in command.params if isinstance(parameter, click.Option))
    }
    assert asking == set(re.findall(r"`fedrecall (\w+)`", FOREIGN))


def test_every_section_that_can_name_code_is_named() -> None:
    assert set(CODE_KEYS) <= set(re.findall(r"`([a-z._]+)`", FOREIGN))


def test_every_variable_of_ours_is_named() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(package.__file__).parent.rglob("*.py"))
    ours = set(re.findall(r"FEDRECALL_[A-Z]+", sources))
    assert "FEDRECALL_DATA" in ours
    assert ours == set(re.findall(r"FEDRECALL_[A-Z]+", PAGE))


def test_the_sentence_is_the_one_that_is_shown(fedrecall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("theirs").mkdir()
    Path("theirs", files.RECIPE).write_text(yaml.safe_dump({"model": "own_net:net"}))
    shown = fedrecall("resume", "theirs")
    quoted = re.search(r"^    (fedrecall: error: .*?)\n\n", FOREIGN, re.MULTILINE | re.DOTALL)
    assert quoted is not None
    assert (shown.code, shown.err.split()) == (2, quoted[1].split())
    assert "own_net" not in sys.modules


def test_the_ledger_is_as_it_is_called() -> None:
    assert f"`{LEDGER}` in `FEDRECALL_STATE`" in FOREIGN


def test_it_is_linked_from_where_it_is_needed() -> None:
    assert "](docs/security.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](security.md)" in (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
