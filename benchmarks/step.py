"""Where the time of a local step goes, and what the floor is: its arithmetic at the measured matrix-multiply rate.

python benchmarks/step.py W1
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedrecall import CrossEntropy, FedAvg, Federation, Images, Local
from fedrecall.client.batch import Batch
from fedrecall.client.job import Job
from fedrecall.client.worker import Worker
from fedrecall.engines.malloc import keep_freed_memory
from fedrecall.measure.training_cost import flops_per_sample
from fedrecall.models.lenet import lenet
from fedrecall.runs.client_states import StateFiles
from work import WORKS, data

REPEATS = 200


def best(function: Any, repeats: int = REPEATS) -> float:
    """Microseconds of the fastest tenth, in the middle: what else the machine does only adds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 20] * 1e6


class Timed(TorchDispatchMode):
    """Notes how long each operation takes, forward and backward."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[dict[str, float]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        times = self.steps[-1]
        name = f"{func} #{sum(key.startswith(f'{func} ') for key in times) + 1}"
        times[name] = time.perf_counter() - start
        return result


def multiply_rate() -> float:
    """Floating-point operations a microsecond of one thread on large matrices."""
    n = 1024
    a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    return 2 * n**3 / best(lambda: torch.mm(a, b, out=out), 20)


def worker_for(name: str, folder: str) -> tuple[Worker, Tensor, Tensor]:
    """A worker, and the first batch of its first client."""
    work = WORKS[name]
    x, y = data(work)
    transform = Images((0.5,) * 3, (0.25,) * 3) if work.model == "lenet" else None
    federation = Federation.from_clients(
        [(x[: work.samples], y[: work.samples])], num_classes=10, validation=0, transform=transform, layout="nhwc"
    )
    local = Local(steps=work.steps, batch_size=work.batch_size, lr=work.lr, weight_decay=0.0)
    make = (lambda: lenet((3, 32, 32), 10)) if work.model == "lenet" else (lambda: torch.nn.Linear(512, 10))
    worker = Worker(Job(make, FedAvg(), CrossEntropy(), local, 0), federation, StateFiles(Path(folder)))
    worker.publish({"w": worker.flat.w.clone()}, worker.flat.buffers())
    samples, target = federation.train.gather(torch.arange(work.batch_size))
    return worker, samples, target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("work", nargs="?", default="W1", choices=list(WORKS))
    name = parser.parse_args().work
    torch.set_num_threads(1)
    keep_freed_memory()
    rate = multiply_rate()
    print(f"{name}; matrices multiply at {rate / 1000:.1f} GFLOP/s on one thread")
    with tempfile.TemporaryDirectory() as folder:
        worker, samples, target = worker_for(name, folder)
        flops = flops_per_sample(worker.flat, worker.federation) * len(target)
        worker.flat.module.train()
        x = worker.federation.transform(samples)
        whole = best(lambda: worker.step(Batch(x, target)))
        batch = best(lambda: worker.federation.transform(samples))
        update = best(lambda: worker.flat.w.add_(worker.flat.g))
        with Timed() as timed:
            for _ in range(REPEATS):
                timed.steps.append({})
                worker.step(Batch(x, target))
    print(f"a step {whole:.0f} us, its batch {batch:.0f}, the update {update:.0f}; "
          f"floor {flops / rate:.0f} us for {flops / 1e6:.1f} MFLOP")  # fmt: skip
    parts = {key: sorted(times[key] for times in timed.steps)[REPEATS // 20] * 1e6 for key in timed.steps[0]}
    longest = sorted(parts.items(), key=lambda part: -part[1])[:12]
    for key, microseconds in longest:
        print(f"  {microseconds:8.0f} us  {key}")
    print(f"  {sum(parts.values()) - sum(dict(longest).values()):8.0f} us  {len(parts) - 12} other calls")
    return 0


if __name__ == "__main__":
    sys.exit(main())
