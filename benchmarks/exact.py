"""Seconds an `exact` step of several networks: one client's local steps beside a bare PyTorch loop, in turns.

python benchmarks/exact.py --cycles 9
python benchmarks/exact.py resnet18-64-batch --threads 2
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedrecall import CrossEntropy, FedAvg, Federation, Images, Local
from fedrecall.client.job import Job
from fedrecall.client.tasks import TrainTask
from fedrecall.client.worker import Worker
from fedrecall.engines.malloc import keep_freed_memory
from fedrecall.models.lenet import lenet
from fedrecall.models.resnet import resnet18
from fedrecall.runs.client_states import StateFiles

SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class Network:
    """What is trained, and by how many steps of which size."""

    make: Callable[[], nn.Module]
    batch: int = 64
    steps: int = 20


def convolutions() -> nn.Module:
    """Two convolutions of 32 and 64 channels, and two linear layers."""
    first, second = nn.Conv2d(3, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
    pooled = [first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*pooled, nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 10))


def linear() -> nn.Module:
    """A head on the first 512 of an image's numbers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))


NETWORKS = {
    "lenet-64": Network(partial(lenet, SHAPE, 10)),
    "lenet-10": Network(partial(lenet, SHAPE, 10), batch=10, steps=50),
    "linear-10": Network(linear, batch=10, steps=200),
    "convolutions-64": Network(convolutions),
    "convolutions-10": Network(convolutions, batch=10, steps=50),
    **{
        f"resnet18-{width}-{norm}": Network(partial(resnet18, SHAPE, 10, norm=norm, width=width), steps=steps)
        for width, steps in ((16, 6), (64, 3))
        for norm in ("batch", "group")
    },
}


def bare(network: Network, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(network.steps):
        chosen = torch.arange(step * network.batch, (step + 1) * network.batch)
        batch = ((x[chosen].float() / 255 - 0.5) / 0.25).permute(0, 3, 1, 2)
        optimiser.zero_grad()
        F.cross_entropy(model(batch), y[chosen]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def compare(name: str, threads: int, cycles: int) -> None:
    network, random = NETWORKS[name], np.random.default_rng(0)
    samples = network.steps * network.batch
    x, y = random.integers(0, 256, (samples, 32, 32, 3), dtype=np.uint8), random.integers(0, 10, samples)
    federation = Federation.from_clients(
        [(x, y)], num_classes=10, validation=0, transform=Images((0.5,) * 3, (0.25,) * 3), layout="nhwc"
    )
    local = Local(steps=network.steps, batch_size=network.batch, lr=0.01, weight_decay=0.0, threads=threads)
    model = network.make().to(memory_format=torch.channels_last)
    times: dict[str, list[float]] = {"bare": [], "ours": []}
    with tempfile.TemporaryDirectory() as folder:
        job = Job(network.make, FedAvg(), CrossEntropy(), local, 0)
        worker = Worker(job, federation, StateFiles(Path(folder)))
        worker.publish({"w": worker.flat.w.clone()}, worker.flat.buffers())
        given = torch.from_numpy(x), torch.from_numpy(y)
        turns = {
            "bare": lambda: bare(network, model, *given),
            "ours": lambda: worker.run(TrainTask(1, 0, 0, 0.01)),
        }
        for cycle in range(cycles + 1):  # the first warms up
            for kind, turn in turns.items():
                start = time.perf_counter()
                turn()
                if cycle:
                    times[kind].append((time.perf_counter() - start) / network.steps)
    ratios = [ours / theirs for ours, theirs in zip(times["ours"], times["bare"])]
    seconds = {kind: statistics.median(found) * 1e3 for kind, found in times.items()}
    print(f"{name:20}bare {seconds['bare']:8.2f} ms   ours {seconds['ours']:8.2f} ms   ratio "
          f"{statistics.median(ratios):.3f}   ({min(ratios):.3f} to {max(ratios):.3f})", flush=True)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: 1)")
    parser.add_argument("--cycles", type=int, default=9, help="turns of each (default: 9)")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    keep_freed_memory()
    for name in chosen.networks:
        compare(name, chosen.threads, chosen.cycles)
    return 0


if __name__ == "__main__":
    sys.exit(main())
