"""What the README shows runs as it stands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda text: text.split("\n")[1])
def test_a_block_of_the_readme_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(README), "exec"), {})  # a block that raises fails the test
    assert len(BLOCKS) == 2


@pytest.mark.slow
def test_the_example_in_python_repeats(tmp_path: Path) -> None:
    """In two processes: nothing of it depends on what a process drew before."""
    (tmp_path / "example.py").write_text(f"import torch\ntorch.rand(int(__import__('sys').argv[1]))\n{BLOCKS[1]}")
    out = []
    for draws in ("1", "2"):
        (tmp_path / draws).mkdir()
        done = subprocess.run(
            [sys.executable, "../example.py", draws], cwd=tmp_path / draws, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        summary = json.loads((tmp_path / draws / "runs/run/summary.json").read_text())
        out.append((done.stdout, summary["recipe_sha256"], summary["final_accuracy"]))
    assert out[0] == out[1]
