"""Very many rounds of a tiny model: does memory grow, or the number of open files?

    python benchmarks/soak.py                     20,000 rounds on each engine
    python benchmarks/soak.py --rounds 5000 --engine serial

The numbers after the last round are compared with those after round 1,000; more than 5 % above them is a failure.
SCAFFOLD, so that clients have states; an evaluation every 10 rounds, a checkpoint every 100.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrecall import Federation, Iid, Local, federate
from fedrecall.algorithms import Scaffold
from turns import descendants

EARLY, MOST = 1000, 1.05


def held() -> tuple[float, int]:
    """MB of resident memory and open files, of this process and its workers."""
    memory, files = 0.0, 0
    for process in (os.getpid(), *descendants(os.getpid())):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        memory += next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1000
        files += len(os.listdir(f"/proc/{process}/fd"))
    return memory, files


def soak(engine: str, rounds: int, folder: Path) -> bool:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(400, 8)).astype(np.float32), random.integers(0, 3, 400)
    federation = Federation.from_arrays(x, y, test=(x, y), partition=Iid(clients=20, validation=0.2))
    seen: dict[int, tuple[float, int]] = {}

    def watch(line: dict[str, Any]) -> None:
        if line["round"] in (EARLY, rounds):
            seen[line["round"]] = held()

    began = time.perf_counter()
    federate(
        torch.nn.Linear(8, 3),
        federation,
        algorithm=Scaffold(),
        rounds=rounds,
        clients_per_round=2,
        local=Local(steps=1, batch_size=8, lr=0.01),
        evaluation={"every": 10},
        checkpoint={"every": 100},
        engine=engine,
        workers=1 if engine == "serial" else 2,
        watch=watch,
        out=folder,
    )
    (early, early_files), (late, late_files) = seen[EARLY], seen[rounds]
    seconds = time.perf_counter() - began
    print(f"{engine:10} {rounds} rounds in {seconds:.0f} s: {early:.1f} MB after {EARLY} rounds, "
          f"{late:.1f} MB at the end; {early_files} and {late_files} open files", flush=True)  # fmt: skip
    return late <= MOST * early and late_files <= MOST * early_files


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--engine", nargs="+", default=["serial", "processes", "vectorised"])
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        good = [soak(engine, chosen.rounds, Path(folder) / engine) for engine in chosen.engine]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
