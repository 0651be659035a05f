"""User code that raises what usually ends a process quietly: it is a failure of that code, and named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

NET = """
import errno, sys
from torch import nn


class Net(nn.Linear):
    steps = 0

    def forward(self, x):
        Net.steps += self.training
        if Net.steps > {after}:
            {exit}
        return super().forward(x.flatten(1))


def net():
    return Net(784, 10)
"""
RECIPE = {
    "data": "fashion_mini",
    "partition": {"name": "iid", "clients": 4},
    "rounds": 3,
    "clients_per_round": 2,
    "local": {"steps": 2, "batch_size": 16},
    "execution": {"engine": "serial"},
}
EXITS = {
    "sys.exit(0)": "SystemExit",
    "raise EOFError": "EOFError",
    "raise BrokenPipeError(errno.EPIPE, 'pipe')": "BrokenPipeError",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
}


def write(name: str, code: str, after: int) -> None:
    Path(f"{name}.py").write_text(NET.format(exit=code, after=after))
    Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "model": f"{name}:net"}))


@pytest.mark.parametrize("code", EXITS)
def test_it_is_named_with_round_and_client(fedrecall: Any, code: str) -> None:
    name = f"exits_{EXITS[code].lower()}"
    write(name, code, after=4)  # two clients of two steps each: in round 2
    done = fedrecall("run", "recipe.yaml", "--out", "run", "--quiet")
    assert done.code == 1
    assert f"in round 2 was ended by {EXITS[code]}" in done.err
    assert "client " in done.err
    assert f"{name}.py" in done.err
    assert "fedrecall replay run --round 2 --client" in done.err
    sys.modules[name].Net.steps = -(10**9)  # mended
    assert fedrecall("resume", "run", "--quiet").code == 0


@pytest.mark.parametrize("code", [code for code in EXITS if "Keyboard" not in code])
def test_before_the_first_round_it_is_no_success_either(fedrecall: Any, code: str) -> None:
    write(f"early_{EXITS[code].lower()}", code, after=-1)
    done = fedrecall("run", "recipe.yaml", "--out", "run", "--quiet")
    assert done.code == 1
    assert EXITS[code] in done.err
