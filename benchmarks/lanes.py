"""GFLOP/s of every kernel of `step: lanes` beside what the processor can do, one thread.

python benchmarks/lanes.py                 LeNet, batches of 64, a sample in each lane
python benchmarks/lanes.py --batch 10 --clients
python benchmarks/lanes.py --avx2          the code for processors without AVX-512, which has the same bits
python benchmarks/lanes.py --pays          steps of several networks and batches beside those of `exact`
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from fedrecall import CrossEntropy, FedAvg, Local
from fedrecall.client.batch import Batch
from fedrecall.client.job import Job
from fedrecall.client.lanes.jit import HASWELL, Code, Cpu, host
from fedrecall.client.lanes.kernels.context import AVX512
from fedrecall.client.lanes.kernels.ir import LANES, Function, Module
from fedrecall.client.lanes.kernels.layers import Convolution
from fedrecall.client.lanes.kernels.program import Program
from fedrecall.client.lanes.kernels.steps import ClientsProgram, SamplesProgram
from fedrecall.client.lanes.lowering import lower
from fedrecall.client.lanes.model_reader import chain_of
from fedrecall.client.lanes.samples import LanesStep
from fedrecall.client.step import ExactStep, Step
from fedrecall.core.vector import FlatModel
from fedrecall.data.transform import Plain
from fedrecall.models.lenet import lenet

BATCHES = (10, 16, 64, 256)
ROOM = 2**24  # bytes that every argument of a kernel may read and write


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--clients", action="store_true", help="a client in each lane, not a sample")
    parser.add_argument("--avx2", action="store_true")
    parser.add_argument("--pays", action="store_true", help="where steps in lanes are faster, and where not")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.pays:
        return compare()
    cpu = HASWELL if chosen.avx2 else host()
    most = peak(cpu)
    samples = chosen.batch if chosen.clients else -(-chosen.batch // LANES)
    flat = FlatModel(lenet((3, 32, 32), 10))
    given = chain_of(flat, torch.zeros(2, 3, 32, 32)), samples, cpu.machine
    program: Program = (ClientsProgram if chosen.clients else SamplesProgram)(*given, 0.0, 0.0, pixels=False)
    code = Code(program.text, cpu)
    print(f"{cpu.name}: {most:.0f} GFLOP/s in registers; LeNet, {samples} units, chunks of {program.kit.chunk}")
    total, works = 0.0, 0.0
    for kernel, flops, calls in kernels(program):
        seconds = duration(caller(code, kernel)) * calls
        total, works = total + seconds, works + flops * calls
        rate = f"{flops * calls / seconds / 1e9:8.1f} GFLOP/s{flops * calls / seconds / 1e7 / most:6.0f} %"
        print(f"  {kernel.name:26}{calls:4} x {seconds / calls * 1e6:8.1f} us{seconds * 1e3:9.3f} ms"
              f"{rate if flops else ''}")  # fmt: skip
    share = works / total / 1e7 / most
    print(f"  {'all':26}{'':17}{total * 1e3:9.3f} ms{works / total / 1e9:8.1f} GFLOP/s{share:6.0f} %")
    return 0


def compare() -> int:
    """CPU time of a step in lanes beside one of `exact`, forward, loss and backward."""
    networks: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
        "linear 512-10": ((512,), lambda: nn.Linear(512, 10)),
        **{f"MLP 784-{h}-10": ((784,), partial(mlp, h)) for h in (64, 256, 1024)},
        "LeNet 3x32x32": ((3, 32, 32), lambda: lenet((3, 32, 32), 10)),
        **{f"2 convolutions of {c}": ((3, 32, 32), partial(convolutions, c)) for c in (8, 16, 32, 64, 128)},
        **{f"5 without pooling of {c}": ((3, 32, 32), partial(body, c)) for c in (8, 16, 32, 64)},
    }
    print(f"{'of `exact`':24}" + "".join(f"{f'batch {batch}':>12}" for batch in BATCHES))
    for name, (shape, make) in networks.items():
        ratios = [ratio(make(), shape, batch) for batch in BATCHES]
        print(f"{name:24}" + "".join(f"{found:12.2f}" for found in ratios), flush=True)
    return 0


def mlp(hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def convolutions(channels: int) -> nn.Module:
    first, second = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, channels, 3, padding=1)
    layers = [first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * 64, 10))


def body(channels: int) -> nn.Module:
    """The convolutions of a narrow ResNet's first stages, without its norms and sums."""
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()]
    for stride in (1, 2, 1, 1):
        layers += [nn.Conv2d(channels, channels, 3, stride, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def ratio(module: nn.Module, shape: tuple[int, ...], batch: int) -> float:
    """The median over turns, each of steps in lanes and of `exact` ones."""
    x, target = torch.randn(batch, *shape), torch.arange(batch) % 10
    if x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    job = Job(lambda: module, FedAvg(), CrossEntropy(), Local(batch_size=batch), 0)
    flats = [FlatModel(copy.deepcopy(module)) for _ in range(2)]
    lowering = lower(flats[1], x[:2], Plain(), job.local, job.algorithm, job.objective, job.optimiser)
    lanes = LanesStep(lowering, flats[1], job.objective, job.local)
    ways: list[Step] = [ExactStep(flats[0], job), lanes]
    for step in ways * 3:
        step(Batch(x, target))
    found = []
    for _ in range(9):
        times = []
        for step in ways:
            began = time.process_time()
            for _ in range(max(1, 640 // batch)):
                step(Batch(x, target))
            times.append(time.process_time() - began)
        found.append(times[1] / times[0])
    return statistics.median(found)


def kernels(program: Program) -> list[tuple[Function, int, int]]:
    """Each kernel with its operations a call and its calls a step."""
    found = [(program.gather, 0, program.units)]
    for calls, times in (
        (program.images_there, program.chunks),
        (program.images_back, program.chunks),
        (program.features_there, 1),
        (program.features_back, 1),
    ):
        found += [(call.kernel, work(program, call.kernel.name), times) for call in calls]
    return found


def work(program: Program, name: str) -> int:
    """The products and sums of a kernel, which is named after its kind and the number of its layer."""
    kind, _, number = name.rpartition("_")
    if kind in ("convolution", "convolution_weights", "convolution_input"):
        layer, grid = program.spatial[int(number)], program.grids[int(number) + 1]
        assert isinstance(layer, Convolution)
        pixels = grid.height * grid.width * program.kit.chunk
        return 2 * layer.outputs * layer.group[0] * layer.taps * pixels * LANES
    if kind in ("linear", "linear_weights", "linear_input"):
        matrix = program.chain.linear[int(number)]
        return 2 * matrix.inputs * matrix.outputs * program.units * LANES
    return 0


def caller(code: Code, kernel: Function) -> Callable[[], None]:
    """A call of the kernel on memory of zeros."""
    rooms = [torch.zeros(ROOM // 4 + 16) for _ in kernel.arguments]
    values = [room.data_ptr() + -room.data_ptr() % 64 for room in rooms]
    function = code.function(kernel)

    def call() -> None:
        function(*values)

    call.rooms = rooms  # type: ignore[attr-defined]
    return call


def duration(call: Callable[[], None]) -> float:
    """Seconds of a call: the least of many, which other programs did not interrupt."""
    call()
    best = math.inf
    for _ in range(30):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    times = max(1, int(1e-3 / best))
    for _ in range(10):
        began = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, (time.perf_counter() - began) / times)
    return best


def peak(cpu: Cpu) -> float:
    """GFLOP/s of products and sums that never leave the registers."""
    module, rounds = Module(), 1_000_000
    sums = 10 if cpu.machine is AVX512 else 5
    f = Function(module, "peak", "pto")
    a, b = f.load("%pto"), f.load(f.at("%pto", 1))
    begin = [f.load(f.at("%pto", 2 + k)) for k in range(sums)]  # or they would be one sum
    for k, value in enumerate(f.loop(rounds, lambda i, *c: [f.fma(a, b, each) for each in c], begin)):
        f.store(value, f.at("%pto", 2 + k))
    f.done()
    room = torch.zeros(16 * (sums + 4))
    code = Code(module.text(), cpu)
    function = code.function(f)
    least = duration(lambda: function(room.data_ptr() + -room.data_ptr() % 64))
    return 2 * sums * rounds * LANES / least / 1e9


if __name__ == "__main__":
    sys.exit(main())
