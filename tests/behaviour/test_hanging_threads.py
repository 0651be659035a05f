"""A run of the engine `vectorised` stops when it is told to, also while code of the user's hangs in a thread."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
import yaml

from fedrecall.runs import checkpoint

# In a thread in round 2, for ever: in one call that does not return, in lines of Python, and in calls to torch.
MINE = """
import threading
import time
from pathlib import Path
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.linear = nn.Linear(784, num_classes)

    def forward(self, x):
        if Path("run/metrics.jsonl").exists() and threading.current_thread() is not threading.main_thread():
            Path("hangs").touch()
            while True:
                {hang}
        return self.linear(x.flatten(1))

def net(num_classes):
    return Net(num_classes)
"""
RECIPE = {
    "data": "fashion_mini",
    "partition": {"name": "iid", "clients": 4},
    "model": "mine:net",
    "objective": "fedntd",  # the teacher's forward pass runs in the threads
    "rounds": 3,
    "clients_per_round": 2,
    "local": {"steps": 2, "batch_size": 8, "lr": 0.05},
    "evaluation": {"every": 1, "test_last": 0},
    "execution": {"engine": "vectorised", "workers": 2},
}


def wait_until(condition, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hang", "how"),
    [
        ("time.sleep(1000)", signal.SIGTERM),
        ("pass", signal.SIGTERM),
        ("torch.ones(300, 300) @ torch.ones(300, 300)", signal.SIGINT),
    ],
)
def test_a_signal_ends_the_run_after_a_checkpoint(hang, how, tmp_path) -> None:
    (tmp_path / "mine.py").write_text(MINE.replace("{hang}", hang))
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    command = [sys.executable, "-m", "fedrecall.cli.main", "run", "recipe.yaml", "--out", "run", "--quiet"]
    run = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: (tmp_path / "hangs").exists() or run.poll() is not None, seconds=120)
        run.send_signal(how)
        _, error = run.communicate(timeout=30)
    finally:
        run.kill()
    assert run.returncode == 130
    assert error.strip() == "fedrecall: stopped after round 1; go on with: fedrecall resume run"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"
    assert checkpoint.newest(tmp_path / "run" / "checkpoints")[0].round == 1
