"""Modules of the working folder are the user's: they hide no library, in workers as in the command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedrecall.engines.processes.search_path import libraries_first

# Of the standard library, of what fedrecall needs, and some of what these import late.
HIDING = ("random", "tempfile", "socket", "signal", "yaml", "numpy", "torch", "cloudpickle", "statistics", "sympy")
CONSOLE_SCRIPT = "from fedrecall.cli.main import main\nmain()\n"
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.linear = nn.Linear(784, classes)
    def forward(self, x):
        return self.linear(x.flatten(1))

def net(num_classes):
    return Net(num_classes)
"""
SCRIPT = """
import numpy as np
from fedrecall import Federation, Iid, federate
import beside

x, y = np.random.default_rng(0).normal(size=(60, 784)).astype("float32"), np.arange(60) % 2
federation = Federation.from_arrays(x, y, partition=Iid(clients=4, validation=0.2))
run = federate(beside.Net(2), federation, rounds=1, participation=1.0, engine="processes", workers=2)
print("rounds:", len(run.metrics))
"""
RECIPE = {
    "data": "fashion_mini",
    "partition": {"name": "iid", "clients": 4},
    "model": "mine:net",
    "rounds": 1,
    "clients_per_round": 2,
    "local": {"steps": 2, "batch_size": 8, "lr": 0.05},
    "execution": {"engine": "processes", "workers": 2},
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder to work in, in which every module but the user's own leaves a trace and stops who imports it."""
    place = tmp_path / "place"
    place.mkdir()
    for name in HIDING:
        (place / f"{name}.py").write_text(f"open({str(tmp_path / 'hidden')!r}, 'a').write('{name} ')\n1 / 0\n")
    return place


def run(place: Path, *command: object) -> str:
    finished = subprocess.run(
        [sys.executable, *map(str, command)], cwd=place, capture_output=True, text=True, timeout=300
    )
    hidden = place.parent / "hidden"
    assert not hidden.exists(), f"{hidden.read_text()} {finished.stderr}"
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.slow
def test_a_recipe_with_the_users_own_model_imports_nothing_else_from_the_working_folder(place, tmp_path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "fedrecall").write_text(CONSOLE_SCRIPT)
    (place / "mine.py").write_text(NET)
    (place / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    run(place, tmp_path / "bin" / "fedrecall", "run", "recipe.yaml", "--out", "run", "--quiet")
    assert (place / "run" / "model.safetensors").exists()


@pytest.mark.slow
def test_a_script_from_elsewhere_finds_what_is_beside_it_and_nothing_here(place, tmp_path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "beside.py").write_text(NET)
    (tmp_path / "elsewhere" / "script.py").write_text(SCRIPT)
    assert run(place, tmp_path / "elsewhere" / "script.py") == "rounds: 1\n"


@pytest.mark.slow
def test_with_python_m_the_working_folder_comes_last_too(place) -> None:
    # Python itself looks there first until the command has begun, which these have to do with only later.
    for name in set(HIDING) - {"torch", "cloudpickle"}:
        (place / f"{name}.py").unlink()
    (place / "mine.py").write_text(NET)
    (place / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    run(place, "-m", "fedrecall.cli.main", "run", "recipe.yaml", "--out", "run", "--quiet")


def test_the_folders_of_the_user_are_the_last_in_their_order(tmp_path, monkeypatch) -> None:
    script, here = tmp_path / "script", tmp_path / "here"
    for folder in (script, here):
        folder.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script / "mine.py"), raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys, "path", [str(script), "", "/a", os.getcwd(), "/b"])
    assert libraries_first() == ["/a", "/b", str(script), "", os.getcwd()]
