"""Every block of docs/updates.md runs as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from fedrecall.updates import STAGES

PAGE = (Path(__file__).parents[2] / "docs" / "updates.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
(PRIVATE,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command: str, fedrecall, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(command)
    assert program == "fedrecall"
    done = fedrecall(*words, "--quiet")
    assert (done.code, done.err) == (0, "")


def test_the_page_names_every_stage() -> None:
    assert all(f"`{name}`" in PAGE for name in STAGES)


@pytest.mark.heavy
def test_the_private_recipe_runs(fedrecall, tmp_path, monkeypatch) -> None:
    pytest.importorskip("dp_accounting", reason="needs fedrecall[privacy]")
    monkeypatch.chdir(tmp_path)
    settings = {**yaml.safe_load(PRIVATE), "base": "demo", "rounds": 2, "local": {"steps": 2}}
    Path("private.yaml").write_text(yaml.safe_dump(settings))
    done = fedrecall("run", "private.yaml", "--quiet", "--out", "run")
    assert (done.code, done.err) == (0, "")
    assert '"neighboring_relation": "replace-one"' in Path("run/summary.json").read_text()
