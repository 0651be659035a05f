"""How much sooner a study of many small runs is done with two runs at once than with one after the other.

    python benchmarks/sweep.py                      3 cycles of 12 runs, each with one worker

The two take turns, so that both meet the same weather; the ratio of each cycle and their median are printed, and
the seconds of CPU that each took: on a busy machine these say what the clock does not.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STUDY = ["demo", "objective=cross_entropy,wsm", "algorithm=fedavg,scaffold", "--seeds", "3"]


def cpu_seconds() -> float:
    """Of all processes that were started here and have ended, and of those that they started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(jobs: int, rounds: int) -> tuple[float, float]:
    """Seconds by the clock and of CPU of the whole study, from the command to its tables."""
    with tempfile.TemporaryDirectory() as folder:
        place = ["--out", str(Path(folder) / "study"), "--jobs", str(jobs), "--workers", "1"]
        command = [sys.executable, "-P", "-m", "fedrecall.cli.main", "sweep", *STUDY, f"rounds={rounds}", *place]
        began, before = time.perf_counter(), cpu_seconds()
        subprocess.run([*command, "--quiet", "--no-report"], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began, cpu_seconds() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20, help="of each run")
    given = parser.parse_args()
    cycles = [(measure(1, given.rounds), measure(2, given.rounds)) for _ in range(given.cycles)]
    ratios = [one[0] / two[0] for one, two in cycles]
    for (one, one_cpu), (two, two_cpu) in cycles:
        print(f"one: {one:.1f} s, CPU {one_cpu:.1f} s; two: {two:.1f} s, CPU {two_cpu:.1f} s; ratio {one / two:.2f}")
    print(json.dumps({"ratios": ratios, "median": statistics.median(ratios)}))


if __name__ == "__main__":
    main()
