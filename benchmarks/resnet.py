"""Seconds a step of ResNet-18 (width 64): one client's local steps beside a bare loop with the same threads.

python benchmarks/resnet.py --threads 2 --cycles 3
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from fedrecall import CrossEntropy, FedAvg, Federation, Images, Local
from fedrecall.client.work import Job, TrainTask
from fedrecall.client.worker import Worker
from fedrecall.engines.malloc import keep_freed_memory
from fedrecall.models.resnet import resnet18
from fedrecall.runs.client_states import StateFiles

STEPS, BATCH = 3, 64


def bare(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    start = time.perf_counter()
    for step in range(STEPS):
        chosen = torch.arange(step * BATCH, (step + 1) * BATCH)
        batch = ((x[chosen].float() / 255 - 0.5) / 0.25).permute(0, 3, 1, 2)
        optimiser.zero_grad()
        F.cross_entropy(model(batch), y[chosen]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return (time.perf_counter() - start) / STEPS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default: 2)")
    parser.add_argument("--cycles", type=int, default=3, help="turns of each (default: 3)")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    keep_freed_memory()
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (STEPS * BATCH, 32, 32, 3), dtype=np.uint8)
    y = random.integers(0, 10, STEPS * BATCH)
    transform = Images((0.5,) * 3, (0.25,) * 3)
    federation = Federation.from_clients(
        [(x, y)], num_classes=10, validation=0, transform=transform, layout="nhwc"
    )
    make = partial(resnet18, (3, 32, 32), 10)
    local = Local(steps=STEPS, batch_size=BATCH, lr=0.01, weight_decay=0.0, threads=chosen.threads)
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(Job(make, FedAvg(), CrossEntropy(), local, 0), federation, StateFiles(Path(folder)))
        worker.publish({"w": worker.flat.w.clone()}, worker.flat.buffers())
        model = make().to(memory_format=torch.channels_last)
        times: dict[str, list[float]] = {"bare": [], "ours": []}
        for cycle in range(chosen.cycles + 1):  # the first warms up
            plain = bare(model, torch.from_numpy(x), torch.from_numpy(y))
            start = time.perf_counter()
            result = worker.run(TrainTask(1, 0, 0, local.lr))
            ours = (time.perf_counter() - start) / STEPS
            assert result.steps == STEPS
            if cycle:
                times["bare"].append(plain)
                times["ours"].append(ours)
    ratios = [mine / theirs for mine, theirs in zip(times["ours"], times["bare"])]
    for name, found in times.items():
        print(f"{name:6} {statistics.median(found):7.3f} s a step")
    print(f"ratio  {statistics.median(ratios):7.3f}   ({min(ratios):.3f} to {max(ratios):.3f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
