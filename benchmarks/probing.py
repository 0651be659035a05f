"""What a probe costs, against the forward passes it cannot do without.

    python benchmarks/probing.py --repeats 5

A run of two rounds of 10 clients, each probed on 100 clients' validation data (5,000 images), less the same run
without probes, set against a bare loop over the same images in the same layout and batches, once for each of the
12 models of a round: 10 of clients, the global one before and after. Seconds are those of the CPU, so that a busy
machine counts less; the engine is `serial`, with one thread.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedrecall import Federation, Iid, federate
from fedrecall.client.predict import EVALUATION_BATCH
from fedrecall.models.lenet import lenet

CLIENTS, SAMPLES, ROUND, ROUNDS = 100, 50_000, 10, 2  # a tenth of the samples is for validation


def plain() -> nn.Module:
    return lenet((3, 32, 32), 10)


def normed() -> nn.Module:
    """As large, with batch norm."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.BatchNorm2d(6), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 16, 5), nn.BatchNorm2d(16), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 10),
    )  # fmt: skip


# With batch norm each client's model passes twice: with its statistics and with those it was sent.
MODELS = {"lenet": (plain, 2 + ROUND), "with batch norm": (normed, 2 + 2 * ROUND)}


def images() -> Federation:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (SAMPLES, 32, 32, 3), np.uint8), random.integers(0, 10, SAMPLES)
    return Federation.from_arrays(x, y, layout="nhwc", partition=Iid(clients=CLIENTS, validation=0.1))


def run_seconds(model: nn.Module, federation: Federation, probed: bool, folder: Path) -> float:
    began = time.process_time()
    federate(
        model, federation, rounds=ROUNDS, clients_per_round=ROUND, engine="serial", out=folder,
        local={"steps": 1, "batch_size": 16}, evaluation={"every": 1000, "test_last": 0},
        forgetting={"every": int(probed)},
    )  # fmt: skip
    return time.process_time() - began


@torch.no_grad()
def bare_seconds(model: nn.Module, federation: Federation, passes: int, prepared: bool) -> float:
    """A loop of forward passes; `prepared`: on floats that lie ready, else gathered and normalised each time."""
    module = model.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    source, positions = federation.pool("validation")
    chunks = torch.split(torch.from_numpy(positions), EVALUATION_BATCH)

    def batch(chunk: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = federation.transform(source.gather(chunk)[0])
        return x.contiguous(memory_format=torch.channels_last)

    ready = [batch(chunk) for chunk in chunks]
    began = time.process_time()
    for _ in range(passes):
        for chunk, x in zip(chunks, ready):
            module(x if prepared else batch(chunk))
    return time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=5, help="of which the median counts (default: 5)")
    repeats = parser.parse_args(arguments).repeats
    torch.set_num_threads(1)
    federation = images()
    print(f"{'model':<16}{'passes':>7}{'probe s':>9}{'bare s':>8}{'ratio':>7}{'with input s':>14}{'ratio':>7}")
    for name, (make, passes) in MODELS.items():
        turns = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                without = run_seconds(make(), federation, False, Path(folder, "without"))
                probe = (run_seconds(make(), federation, True, Path(folder, "with")) - without) / ROUNDS
            bare, fed = (bare_seconds(make(), federation, passes, prepared) for prepared in (True, False))
            turns.append((probe, bare, probe / bare, fed, probe / fed))
        probe, bare, ratio, fed, fed_ratio = (statistics.median(column) for column in zip(*turns))
        print(f"{name:<16}{passes:7}{probe:9.2f}{bare:8.2f}{ratio:7.2f}{fed:14.2f}{fed_ratio:7.2f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
