"""Every block of docs/extending.md runs as it stands, and is what the tests of extensions test."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_the_tested_extension(name: str) -> None:
    assert BLOCKS[name] == (ROOT / "tests" / "extensions" / name).read_text(encoding="utf-8")


def test_there_is_a_block_for_each_extension() -> None:
    files = {path.name for path in (ROOT / "tests" / "extensions").glob("*.py")} - {"test_extensions.py"}
    assert set(BLOCKS) == files


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command: str, fedrecall, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name, text in BLOCKS.items():
        Path(name).write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    program, *words = shlex.split(command)
    assert program == "fedrecall"
    done = fedrecall(*words, "--quiet")
    assert (done.code, done.err) == (0, "")
