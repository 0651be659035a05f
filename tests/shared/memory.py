"""The most memory that a process of a test's own has held."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Not getrusage's ru_maxrss: a process inherits that from the one that started it, here pytest with all it loaded.
PEAK = """
def peak():
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
"""

measurable = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc, which is Linux's"
)


def printed_by(script: str, *words: object, environment: dict[str, str] | None = None) -> str:
    """What a script that may call `peak()`, in bytes, prints."""
    command = [sys.executable, "-c", PEAK + script, *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout
