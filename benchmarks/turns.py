"""Programs that take turns: each lives through the whole benchmark, and runs some rounds when it is told to.

What else a machine does changes from one minute to the next. Turns of a second or two, one after the other and
many times, meet the same weather; two programs run for a minute each do not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO


class Turns:
    """The program's side: reads how many rounds to run, and answers with their seconds."""

    def __init__(self, answers: TextIO | None = None) -> None:
        self.answers = answers or sys.stdout
        self.left, self.times = self._asked(), list[float]()

    def over_after(self, seconds: float) -> bool:
        """Note a round; at the end of a turn wait for the next. True when there is none."""
        self.times.append(seconds)
        self.left -= 1
        if self.left == 0:
            print(json.dumps(self.times), file=self.answers, flush=True)
            self.left, self.times = self._asked(), []
        return self.left == 0

    def _asked(self) -> int:
        return int(sys.stdin.readline() or 0)


def only_answers() -> TextIO:
    """The standard output, for the answers alone: what a framework prints there goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")  # a copy that no process of the framework inherits
    os.dup2(2, 1)
    return answers


class Program:
    """The benchmark's side."""

    def __init__(self, *words: str | Path, interpreter: str | Path = sys.executable) -> None:
        began = time.perf_counter()
        self.process = subprocess.Popen([interpreter, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.turn(1)
        self.start_up = time.perf_counter() - began  # until its first round is done

    def turn(self, rounds: int) -> list[float]:
        """Seconds of each of so many rounds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{rounds}\n")
        self.process.stdin.flush()
        times: list[float] = json.loads(self.process.stdout.readline())
        assert len(times) == rounds
        return times

    def memory(self) -> float:
        """MB that the program and its processes hold, what they share counted once; 0 where that is not told."""
        if not Path("/proc/self/smaps_rollup").exists():
            return 0.0
        total = 0
        for process in (self.process.pid, *descendants(self.process.pid)):
            try:
                lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            except OSError:  # it has just ended
                continue
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total / 1000

    def end(self) -> dict[str, float]:
        """What the program has to say about its work."""
        answer, _ = self.process.communicate()
        assert self.process.returncode == 0
        found: dict[str, float] = json.loads(answer.splitlines()[-1])
        return found


def descendants(process: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has just ended
            continue
        if parent == process:
            found += [int(path.name), *descendants(int(path.name))]
    return found
