"""How a round on a cluster grows, worked out from measured costs: a simulation of the driver and its workers.

    python benchmarks/cluster_model.py results/cluster/costs.json

The driver does one thing at a time: it hands a chunk to a worker, takes its answer, and hands out the next. A
worker trains the clients of its chunk, or adds up a leaf. What is simulated is when each of them waits for the
other; what it costs is what `benchmarks/cluster.py` has measured, but for the seconds of a client's training,
which are given.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrecall.engines.pool import CHUNK_BYTES, CHUNKS

MODELS = {"LeNet": 248_000, "ResNet-18": 44_700_000}  # bytes of the vector
ADD = 1.3e-10  # seconds a byte of a float32 vector added to a float64 sum (benchmarks/sums.py)


@dataclass(frozen=True)
class Round:
    """What a round is made of."""

    clients: int
    workers: int
    seconds: float  # of a client's training
    size: int  # bytes of its vector
    on_nodes: bool  # sums are added up where clients trained


def simulate(round: Round, costs: Mapping[str, float]) -> tuple[float, float]:
    """Seconds of the round, and the share of it in which the driver works."""
    size = max(1, min(round.clients // (CHUNKS * round.workers), CHUNK_BYTES // round.size))
    size = next(part for part in (16, 8, 4, 2, 1) if part <= size) if round.on_nodes else size
    message = costs["driver_seconds_a_client_alone"]  # hand out, take back, and its share of a leaf
    where = "on_nodes" if round.on_nodes else "here"
    rows = costs[f"driver_seconds_a_client_summed_{where}"]
    here = 0.0 if round.on_nodes else costs["driver_seconds_a_byte_summed_here"] * round.size
    last = 3 * round.clients // 4 if round.on_nodes else round.clients
    sizes = [size] * (last // size) + [max(1, size // 4)] * ((round.clients - last) // max(1, size // 4))
    driver = costs["driver_seconds_a_round"] + costs["driver_seconds_a_byte_published_and_fetched"] * round.size
    busy = driver
    free: list[float] = [0.0] * min(round.workers, len(sizes))  # when each worker has answered
    heapq.heapify(free)
    adding = ADD * round.size if round.on_nodes else 0.0
    for clients in sizes:
        answered = heapq.heappop(free)
        cost = message + clients * (rows + here)
        driver = max(driver, answered) + cost
        busy += cost
        heapq.heappush(free, driver + clients * (round.seconds + adding))
    total = max(driver, *free)
    return total, busy / total


def limit(round: Round, costs: Mapping[str, float]) -> int:
    """The number of workers from which on more of them save less than a tenth."""
    workers = 1
    while workers < 100_000:
        now, _ = simulate(Round(round.clients, workers, round.seconds, round.size, round.on_nodes), costs)
        twice, _ = simulate(Round(round.clients, 2 * workers, round.seconds, round.size, round.on_nodes), costs)
        if twice > 0.9 * now:
            return workers
        workers *= 2
    return workers


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("costs", type=Path)
    costs = json.loads(parser.parse_args(arguments).costs.read_text())
    print("model      seconds a client  clients a round  workers  sums     seconds a round  ideal  driver busy")
    for model, size in MODELS.items():
        for seconds in (0.1, 1.0, 10.0):
            for clients, workers in ((100, 10), (1_000, 100), (10_000, 100), (10_000, 1_000), (100_000, 1_000)):
                for on_nodes in (False, True):
                    round = Round(clients, workers, seconds, size, on_nodes)
                    total, busy = simulate(round, costs)
                    where = "on nodes" if on_nodes else "driver"
                    print(f"{model:10} {seconds:16g} {clients:16,} {workers:8,}  {where:8} {total:15.1f} "
                          f"{clients * seconds / workers:6.1f} {busy:12.0%}")  # fmt: skip
    print("\nworkers from which on twice as many save less than a tenth, 10,000 clients a round, sums on nodes:")
    for model, size in MODELS.items():
        for seconds in (0.1, 1.0, 10.0):
            print(f"{model:10} {seconds:5g} s a client: {limit(Round(10_000, 1, seconds, size, True), costs):,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
