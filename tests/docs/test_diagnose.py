"""Every block of docs/diagnose.md runs as it stands."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def test_the_blocks_run(fedrecall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mymodel", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    commands, scripts = 0, 0
    for kind, block in BLOCK.findall(PAGE):
        for line in block.splitlines() if kind == "console" else ():
            program, *words = shlex.split(line)
            done = fedrecall(*words, "--quiet")
            assert (program, done.code, done.err) == ("fedrecall", 0, "")
            commands += 1
        if kind == "python" and block.startswith("# mymodel.py"):
            Path("mymodel.py").write_text(block, encoding="utf-8")
        elif kind == "python":
            exec(compile(block, "docs/diagnose.md", "exec"), {})
            scripts += 1
    sys.modules.pop("mymodel", None)
    assert (commands, scripts) == (3, 2)
    assert len(list(Path("runs").glob("diagnose*/report.html"))) == 3
