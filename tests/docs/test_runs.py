"""The commands of docs/runs.md run as they stand, and the folder has the files that it names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import torch

from fedrecall import Federation, Iid, federate

PAGE = (Path(__file__).parents[2] / "docs" / "runs.md").read_text(encoding="utf-8")


def test_the_commands_run_and_leave_the_files_of_the_table(fedrecall, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for line in re.search(r"```console\n(.*?)```", PAGE, re.DOTALL)[1].splitlines():
        done = fedrecall(*shlex.split(line)[1:], "--quiet")
        assert (done.code, done.err) == (0, "")
    table = PAGE.split("## The folder")[1].split("## Going on")[0]
    named = {
        name for row in re.findall(r"^\| (`[^|]*)\|", table, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)
    }
    assert "summary.json" in named
    # No client states, no tracker and nothing to warn of here, and no platform keeps a lock file for sure.
    for name in named - {"clients/", "events.jsonl", "lock", "trackers.json"}:
        assert (tmp_path / "runs/mine" / name).exists(), name
    assert (tmp_path / "runs/mine/metrics.jsonl").read_text().count("\n") == 10


def test_the_watcher_of_the_page_watches(tmp_path, capsys) -> None:
    names: dict = {}
    exec(compile(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], "docs/runs.md", "exec"), names)
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    federation = Federation.from_arrays(x, np.arange(40) % 2, partition=Iid(clients=4))
    federate(torch.nn.Linear(3, 2), federation, rounds=2, out=tmp_path / "run", callbacks=[names["Drift"]()])
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[0] for words in shown] == ["1", "2"]
    assert all(float(words[2]) > 0 for words in shown)
