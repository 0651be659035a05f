"""Runs on a second device, in software: the CPU's bits, and no operation that a real device would refuse.

What is run is in tests/shared/device_cases.py, a program of its own; the device is tests/shared/sim_device.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "shared" / "device_cases.py"


SLOW = {"matrix": 100, "models": 20, "engines": 5, "resume": 2}  # on another device only if told to


@pytest.mark.parametrize(
    ("group", "least"), [("quick", 2), *(pytest.param(*group, marks=pytest.mark.slow) for group in SLOW.items())]
)
def test_a_run_on_another_device_has_the_bits_of_the_cpu(tmp_path, group, least) -> None:
    """All cases of a group, and at least so many, in one process."""
    paths = os.pathsep.join([str(PROGRAM.parent), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, PROGRAM, group, tmp_path],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    failed = {line["case"]: line["why"] for line in lines if line["why"]}
    assert not failed, "\n".join(f"{case}:\n{why}" for case, why in failed.items())
    assert lines, ended.stderr[-2000:]
    assert lines[-1]["case"] == "end", ended.stderr[-2000:]
    assert len(lines) > least
