"""Where the time of a local step goes, and what the floor is: its arithmetic at the measured matrix-multiply rate.

python benchmarks/step.py W1
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from fedrecall import CrossEntropy, FedAvg, Federation, Images, Local
from fedrecall.client.step import TRACE_AFTER
from fedrecall.client.work import Job
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


class Timed(Interpreter):
    """Runs a graph call by call, and notes how long each took."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.times: dict[str, list[float]] = defaultdict(list)

    def run_node(self, n: Node) -> Any:
        start = time.perf_counter()
        result = super().run_node(n)
        if n.op == "call_function":
            self.times[n.name].append(time.perf_counter() - start)
        return result


def multiply_rate() -> float:
    """Floating-point operations a microsecond of one thread on large matrices."""
    n = 1024
    a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    return 2 * n**3 / best(lambda: torch.mm(a, b, out=out), 20)


def worker_for(name: str, step: str, folder: str) -> tuple[Worker, Tensor, Tensor]:
    """A worker, and the first batch of its first client."""
    work = WORKS[name]
    x, y = data(work)
    transform = Images((0.5,) * 3, (0.25,) * 3) if work.model == "lenet" else None
    federation = Federation.from_clients(
        [(x[: work.samples], y[: work.samples])], num_classes=10, validation=0, transform=transform, layout="nhwc"
    )
    local = Local(steps=work.steps, batch_size=work.batch_size, lr=work.lr, weight_decay=0.0, step=step)
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
    for step in ("exact", "fast"):
        with tempfile.TemporaryDirectory() as folder:
            worker, samples, target = worker_for(name, step, folder)
            flops = flops_per_sample(worker.flat, worker.federation) * len(target)
            worker.flat.module.train()
            prepare = lambda: worker.federation.transform(samples)  # noqa: B023, E731
            x = prepare()
            eager = best(lambda: worker.step._eager(x, target, {}, worker._compared(x, {})))  # noqa: B023
            for _ in range(TRACE_AFTER + 2):
                worker.step(x, target, {})
            (graph,) = worker.step._graphs.values()
            traced = best(lambda: worker.step(x, target, {}))  # noqa: B023
            timed = Timed(graph._run.__self__)  # type: ignore[attr-defined]
            with torch.no_grad():
                for _ in range(REPEATS):
                    timed.run(x, target, *graph._state, *graph._made)
            print(f"\n{step}: a step {traced:.0f} us (eager {eager:.0f}), its batch "
                  f"{best(prepare):.0f}, the update {best(lambda: worker.flat.w.add_(worker.flat.g)):.0f}; "  # noqa: B023
                  f"floor {flops / rate:.0f} us for {flops / 1e6:.1f} MFLOP")  # fmt: skip
            parts = {key: sorted(found)[len(found) // 20] * 1e6 for key, found in timed.times.items()}
            shown = 0.0
            for key, microseconds in sorted(parts.items(), key=lambda part: -part[1])[:12]:
                print(f"  {microseconds:8.0f} us  {key}")
                shown += microseconds
            print(f"  {sum(parts.values()) - shown:8.0f} us  {len(parts) - 12} other calls")
    return 0


if __name__ == "__main__":
    sys.exit(main())
