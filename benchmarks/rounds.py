"""Seconds a round of our engines beside the bare loops, in turn, and the ratios of their medians.

    python benchmarks/rounds.py                        all works, three cycles
    python benchmarks/rounds.py W1 W3 --cycles 5

What is measured is checked: the number of local steps, and that engines that must agree end at the same weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from work import WORKS, Work

HERE = Path(__file__).parent
ENGINES = {
    "W1": ["serial", "processes", "processes fast"],
    "W2": ["serial", "processes", "processes fast"],
    "W3": ["serial", "processes", "vectorised"],
}


def ours(work: Work, name: str, kind: str, rounds: int, **local: object) -> list[float]:
    """The seconds of each round of a run with this engine, in a process of its own; the first three left out."""
    engine, _, step = kind.partition(" ")
    with tempfile.TemporaryDirectory() as folder:
        words = [name, engine, step or "exact", str(rounds), f"{folder}/run", json.dumps(local)]
        subprocess.run([sys.executable, HERE / "ours.py", *words], check=True)
        lines = [json.loads(line) for line in Path(folder, "run/timings.jsonl").read_text().splitlines()]
    return [line["seconds"] for line in lines[3:]]


def bare(name: str, seconds: float) -> list[float]:
    done = subprocess.run(
        [sys.executable, HERE / "bare.py", name, str(seconds)], check=True, capture_output=True, text=True
    )
    return [float(word) for word in done.stdout.split()]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("works", nargs="*", default=list(WORKS), metavar="WORK", help="W1, W2, W3 (default: all)")
    parser.add_argument("--cycles", type=int, default=3, help="turns of each (default: 3)")
    parser.add_argument("--seconds", type=float, default=15, help="of each turn, about (default: 15)")
    chosen = parser.parse_args(arguments)
    for name in chosen.works:
        work = WORKS[name]
        print(f"{name}: {work.about}, {work.clients} x {work.samples}, {work.per_round} a round, "
              f"{work.steps} steps of batch {work.batch_size}")  # fmt: skip
        times: dict[str, list[float]] = {"bare": []}
        for _ in range(chosen.cycles):
            times["bare"].append(statistics.median(bare(name, chosen.seconds)))
            rounds = 4 + int(chosen.seconds / times["bare"][-1])
            for kind in ENGINES[name]:
                times.setdefault(kind, []).append(statistics.median(ours(work, name, kind, rounds)))
        for kind, found in times.items():
            ratios = [mine / theirs for mine, theirs in zip(found, times["bare"])]
            print(f"  {kind:16} {statistics.median(found):8.4f} s   {statistics.median(ratios):5.2f} of bare"
                  f"   ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
