"""What a Ray cluster costs, measured on one of three nodes on this machine: by client, by byte and by message.

    python benchmarks/cluster.py            prints the costs, and writes them as JSON to the file named by --out

`benchmarks/cluster_model.py` works out from them how a round grows to 1,000,000 clients and 1,000 workers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import numpy as np
import torch

from fedrecall import CrossEntropy, Federation, Local, Watcher, federate
from fedrecall.algorithms import ALGORITHMS
from fedrecall.engines import pool
from fedrecall.engines.ray import states
from fedrecall.measure.watcher import Round

FEATURES, SAMPLES, MEMORY = 64, 4, 10**9


class Clock(Watcher):
    """Seconds of each round, and the CPU seconds of this process, the driver, in it."""

    def __init__(self) -> None:
        self.at = [(time.perf_counter(), time.process_time())]

    def after(self, round: Round) -> None:
        self.at.append((time.perf_counter(), time.process_time()))

    def medians(self) -> tuple[float, float]:
        """Without the first two rounds, in which things are made."""
        steps = np.diff(np.array(self.at), axis=0)[2:]
        return statistics.median(steps[:, 0]), statistics.median(steps[:, 1])


class Each(Clock):
    """Wants to see each client, so that all vectors come to the driver."""

    def result(self, round: Round, result: object) -> None:
        pass


def federation(clients: int) -> Federation:
    random = np.random.default_rng(0)
    x = random.normal(size=(clients * SAMPLES, FEATURES)).astype(np.float32)
    y, ids = random.integers(0, 10, len(x)), np.repeat(np.arange(clients), SAMPLES)
    return Federation.from_arrays(x, y, ids=ids, num_classes=10, partition="natural")


def rounds(
    address: str, clients: int, per_round: int, model: Callable[[], Any], clock: Clock, algorithm: str = "fedavg"
) -> tuple[float, float]:
    """Seconds a round, and the driver's CPU seconds in it."""
    with tempfile.TemporaryDirectory() as folder:
        federate(
            model, federation(clients), algorithm=ALGORITHMS[algorithm](), objective=CrossEntropy(), rounds=7,
            clients_per_round=per_round, local=Local(steps=1, batch_size=SAMPLES, lr=0.01, weight_decay=0.0),
            evaluation={"every": 100, "test_last": 0}, engine="ray", workers=2, out=Path(folder) / "run",
            execution={"ray_address": address}, callbacks=[clock], progress=False, report=False,
        )  # fmt: skip
    return clock.medians()


def linear() -> torch.nn.Module:
    return torch.nn.Linear(FEATURES, 10)


def wide(width: int) -> Callable[[], torch.nn.Module]:
    return lambda: torch.nn.Sequential(torch.nn.Linear(FEATURES, width), torch.nn.Linear(width, 10))


def measure(address: str) -> dict[str, float]:
    found: dict[str, float] = {}

    def note(name: str, value: float) -> None:
        found[name] = value
        print(f"{name}: {value:.3g}", flush=True)

    few, many = 64, 2048
    by_count = {count: rounds(address, 4000, count, linear, Clock())[1] for count in (few, many)}
    note("driver_seconds_a_client_summed_on_nodes", (by_count[many] - by_count[few]) / (many - few))
    each = {count: rounds(address, 4000, count, linear, Each())[1] for count in (few, many)}
    note("driver_seconds_a_client_summed_here", (each[many] - each[few]) / (many - few))
    note("driver_seconds_a_round", by_count[few] - few * found["driver_seconds_a_client_summed_on_nodes"])
    chunks, pool.CHUNKS = pool.CHUNKS, 10**6  # so that every client travels alone
    alone = {count: rounds(address, 4000, count, linear, Clock())[1] for count in (few, 512)}
    pool.CHUNKS = chunks
    note("driver_seconds_a_client_alone", (alone[512] - alone[few]) / (512 - few))
    width = 40_000  # 3 million numbers, 12 MB
    size = 4 * (FEATURES * width + width + width * 10 + 10)
    counts = (17, 64)
    for name, kind in {"here": Each, "on_nodes": Clock}.items():
        few, many = (rounds(address, 200, count, wide(width), kind())[1] for count in counts)
        note(f"driver_seconds_a_byte_summed_{name}", (many - few) / (counts[1] - counts[0]) / size)
    note("driver_seconds_a_byte_published_and_fetched", few / size)
    plain = rounds(address, 400, 128, wide(800), Clock())
    shared = rounds(address, 400, 128, wide(800), Clock(), "scaffold")
    leave = states.FolderToken.leave
    states.FolderToken.leave = lambda self: None  # type: ignore[method-assign]
    sent = rounds(address, 400, 128, wide(800), Clock(), "scaffold")
    states.FolderToken.leave = leave  # type: ignore[method-assign]
    for name, (seconds, driver) in {"no_state": plain, "state_in_a_folder": shared, "state_sent": sent}.items():
        note(f"{name}_round_seconds_a_client", seconds / 128)
        note(f"{name}_driver_seconds_a_client", driver / 128)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(arguments)
    from ray.cluster_utils import Cluster

    began = time.perf_counter()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": MEMORY})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
        print(f"a head and two nodes after {time.perf_counter() - began:.1f} s")
        found = measure(cluster.address)
    finally:
        cluster.shutdown()
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
