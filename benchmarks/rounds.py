"""Seconds a round of our engines beside the bare loops, in turns, and the medians of the ratios.

    python benchmarks/rounds.py                        all works
    python benchmarks/rounds.py W1 W3 --cycles 30
    python benchmarks/rounds.py W2 --kinds processes ray
    python benchmarks/rounds.py --peers                our default engine beside Flower and pfl: `make bench-peers`
    python benchmarks/rounds.py --device cuda          all of it on a device, the bare loop too (docs/devices.md)

What is measured is checked: every local step is counted, `serial` and `processes` end at the same weights, and all
others as far from where they started.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from fedrecall.backend.device import Device, find_devices
from fedrecall.runs.environment import environment
from turns import Program
from work import WORKS

HERE = Path(__file__).resolve().parent
KINDS = {
    "W1": [
        "serial",
        "processes",
        "processes lanes",
        "processes augmented",
        "processes everything",
    ],
    "W2": ["serial", "processes", "processes lanes", "vectorised lanes"],
    "W3": ["serial", "processes", "vectorised", "vectorised lanes"],
}
ON_RAY = ("W1", "W2")  # with `pip install -e '.[ray]'`, its engine too
PEERS = ["flower", "pfl"]  # each with an environment of its own


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("works", nargs="*", default=list(WORKS), metavar="WORK", help="W1, W2, W3 (default: all)")
    parser.add_argument("--cycles", type=int, default=12, help="turns of each (default: 12)")
    parser.add_argument("--seconds", type=float, default=1, help="of each turn, about (default: 1)")
    parser.add_argument("--only", default="", help="kinds with this in their name: 'lanes', 'processes'")
    parser.add_argument("--kinds", nargs="+", metavar="KIND", help="these and no others: --kinds processes ray")
    parser.add_argument("--peers", action="store_true", help="beside Flower and pfl")
    parser.add_argument("--device", default="cpu", help="where all of it trains: cuda, cuda:1, mps, xpu")
    chosen = parser.parse_args(arguments)
    if chosen.device != "cpu":
        say_where(chosen.device)
    for name in chosen.works:
        kinds = ["processes", *PEERS] if chosen.peers else [kind for kind in KINDS[name] if chosen.only in kind]
        if name in ON_RAY and chosen.only in "ray" and find_spec("ray") and not chosen.peers:
            kinds.append("ray")
        compare(name, chosen.kinds or kinds, chosen.cycles, chosen.seconds, chosen.device)
    return 0


def say_where(device: str) -> None:
    """What the numbers depend on, so that they can be compared with others'."""
    place = Device(find_devices(device)[0])
    print(json.dumps(environment(place)))


def started(name: str, kind: str, folder: str, device: str) -> Program:
    if kind == "bare":
        return Program(HERE / "bare.py", name, device)
    if kind in PEERS:
        own = HERE.parent / f".venv-{kind}" / "bin" / "python"
        return Program(HERE / "peers" / f"run_{kind}.py", name, interpreter=own)
    return Program(HERE / "ours.py", name, kind, f"{folder}/{kind}", device)


def compare(name: str, kinds: list[str], cycles: int, seconds: float, device: str = "cpu") -> None:
    work = WORKS[name]
    print(f"{name}: {work.about}, {work.clients} x {work.samples}, {work.per_round} a round, "
          f"{work.steps} steps of batch {work.batch_size}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        programs = {kind: started(name, kind, folder, device) for kind in ["bare", *kinds]}
        warm = {kind: statistics.median(program.turn(4)) for kind, program in programs.items()}
        rounds = max(1, round(seconds / warm["bare"]))
        times: dict[str, list[float]] = {kind: [] for kind in programs}
        ratios: dict[str, list[float]] = {kind: [] for kind in kinds}

        def turn(kind: str) -> float:
            times[kind].append(statistics.median(programs[kind].turn(rounds)))
            return times[kind][-1]

        before = turn("bare")
        for _ in range(cycles):
            for kind in kinds:  # each between two turns of the bare loop
                seconds, after = turn(kind), turn("bare")
                ratios[kind].append(2 * seconds / (before + after))
                before = after
        memory = {kind: program.memory() for kind, program in programs.items()}
        moved = {kind: program.end()["moved"] for kind, program in programs.items()}
        again = started(name, "bare", folder, device)  # as many rounds as the others: it took more turns
        again.turn(4 + cycles * rounds)
        moved["bare"] = again.end()["moved"]
    print(f"  {'':22}{'s a round':>10}{'of bare':>9}{'  middle half':16}{'first round':>12}{'memory':>9}")
    for kind, found in times.items():
        low, middle, high = statistics.quantiles(ratios.get(kind, [1.0, 1.0]), n=4)
        print(f"  {kind:22}{statistics.median(found):10.4f}{middle:9.3f}  {low:.2f} to {high:.2f}    "
              f"{programs[kind].start_up:10.1f} s{memory[kind]:6.0f} MB", flush=True)  # fmt: skip
    check(moved)


def check(moved: dict[str, float]) -> None:
    """Did all do the same work? All start from the same weights, but do not all see the same batches: they come
    equally far, not to the same place."""
    if {"serial", "processes"} <= moved.keys():
        assert moved["serial"] == moved["processes"], moved
    for kind, distance in moved.items():
        assert math.isclose(distance, moved["bare"], rel_tol=0.25), (kind, moved)
    print(f"  distances from the first weights {min(moved.values()):.4f} to {max(moved.values()):.4f}\n")


if __name__ == "__main__":
    sys.exit(main())
