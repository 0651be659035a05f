"""Start-up, memory and seconds a round with few and with very many clients, of which equally many take part.

    python benchmarks/scale.py                      2,000 and 100,000 clients of 20 samples, 500 a round
    python benchmarks/scale.py --clients 2000 1000000 --samples 4 --features 32 --per-round 2000 --engine ray

The samples are made up and written once; both federations map the same file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

STEPS, BATCH = 2, 10


def write(folder: Path, count: int, features: int) -> None:
    """float16 samples in a mapped file, a part at a time."""
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float16, (count, features))
    random = np.random.default_rng(0)
    part = random.normal(size=(100_000, features)).astype(np.float16)
    for start in range(0, count, len(part)):
        x[start : start + len(part)] = part[: count - start]
    x.flush()
    np.save(folder / "y.npy", random.integers(0, 10, count))


def peak() -> int:
    """The most bytes this process has held; ru_maxrss would be that of the process that started it, if larger."""
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def run(folder: Path, clients: int, engine: str, chosen: argparse.Namespace) -> None:
    """One run, in a process of its own; prints what was measured."""
    began = time.perf_counter()
    import torch

    from fedrecall import CrossEntropy, FedAvg, Federation, Local, Natural, federate

    x = np.load(folder / "x.npy", mmap_mode="r")
    ids = np.repeat(np.arange(clients), chosen.samples)
    federation = Federation.from_arrays(
        x[: len(ids)], np.load(folder / "y.npy")[: len(ids)], ids=ids, num_classes=10,
        partition=Natural(validation=0.0),
    )  # fmt: skip
    first: list[float] = []
    done = federate(
        torch.nn.Linear(chosen.features, 10),
        federation,
        algorithm=FedAvg(),
        objective=CrossEntropy(),
        rounds=chosen.rounds,
        clients_per_round=chosen.per_round,
        local=Local(steps=STEPS, batch_size=BATCH, lr=0.05),
        engine=engine,
        workers=1 if engine == "serial" else 2,
        out=folder / f"{engine}-{clients}",
        watch=lambda line: first.append(time.perf_counter() - began),
    )
    lines = (done.path / "timings.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["seconds"] for line in lines[3:]]
    print(json.dumps({"first": first[0], "round": statistics.median(seconds), "peak": peak() / 2**20}))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, nargs="+", default=[2000, 100_000])
    parser.add_argument("--engine", nargs="+", default=["vectorised", "serial"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--samples", type=int, default=20, help="of each client")
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--per-round", type=int, default=500)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.one:
        run(chosen.one, chosen.clients[0], chosen.engine[0], chosen)
        return 0
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), max(chosen.clients) * chosen.samples, chosen.features)
        for engine in chosen.engine:
            for clients in chosen.clients:
                words = ["--one", name, "--clients", str(clients), "--engine", engine]
                for key in ("rounds", "samples", "features", "per_round"):
                    words += [f"--{key.replace('_', '-')}", str(getattr(chosen, key))]
                command = [sys.executable, __file__, *words]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found = json.loads(done.stdout.splitlines()[-1])
                print(f"{engine:11} {clients:7} clients: first round done after {found['first']:5.1f} s, "
                      f"{found['round']:.4f} s a round, peak {found['peak']:.0f} MiB", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
