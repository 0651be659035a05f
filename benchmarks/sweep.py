"""How much sooner a study of many small runs is done with two runs at once than with one after the other.

    python benchmarks/sweep.py                      3 cycles of 12 runs, each with one worker

The two take turns, so that both meet the same weather; the ratio of each cycle and their median are printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STUDY = ["demo", "objective=cross_entropy,wsm", "algorithm=fedavg,scaffold", "--seeds", "3"]


def seconds(jobs: int, rounds: int) -> float:
    """Of the whole study, from the command to its tables."""
    with tempfile.TemporaryDirectory() as folder:
        place = ["--out", str(Path(folder) / "study"), "--jobs", str(jobs), "--workers", "1"]
        command = [sys.executable, "-P", "-m", "fedrecall.cli.main", "sweep", *STUDY, f"rounds={rounds}", *place]
        began = time.perf_counter()
        subprocess.run([*command, "--quiet", "--no-report"], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20, help="of each run")
    given = parser.parse_args()
    pairs = [(seconds(1, given.rounds), seconds(2, given.rounds)) for _ in range(given.cycles)]
    ratios = [one / two for one, two in pairs]
    print(json.dumps({"seconds": pairs, "ratios": ratios, "median": statistics.median(ratios)}, indent=2))


if __name__ == "__main__":
    main()
