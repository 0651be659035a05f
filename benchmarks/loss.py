"""Microseconds of one forward and backward pass: the re-weighted loss beside plain cross-entropy.

    python benchmarks/loss.py --repeats 40

Function is set against function and module against module, because calling any `nn.Module` has its price.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrecall.core.labels import class_proportions
from fedrecall.core.losses import WSMLoss, log_weights, quick_cross_entropy

SHAPES = ((64, 10), (64, 100), (64, 1000))
STEPS = 50  # per timing: enough to time, short enough for a slow moment of the machine to hit all alike


def microseconds(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor) -> float:
    start = time.perf_counter()
    for _ in range(STEPS):
        logits.grad = None
        loss(logits, target).backward()  # type: ignore[no-untyped-call]
    return (time.perf_counter() - start) / STEPS * 1e6


def measure(samples: int, classes: int, repeats: int) -> dict[str, list[float]]:
    """The timings of each loss, taken in turn; the first turn warms up and is left out."""
    logits = torch.randn(samples, classes, requires_grad=True)
    target = torch.randint(classes, (samples,))
    beta = class_proportions(target, classes)
    logs = log_weights(beta)
    minus = -logs
    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "F.cross_entropy": F.cross_entropy,
        "quick": lambda f, y: quick_cross_entropy(f, y, logs, minus),
        "CrossEntropyLoss": nn.CrossEntropyLoss(),
        "WSMLoss": WSMLoss(beta),
    }
    turns = [{name: microseconds(f, logits, target) for name, f in losses.items()} for _ in range(repeats + 1)]
    return {name: [turn[name] for turn in turns[1:]] for name in losses}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=40, help="turns per loss (default: 40)")
    repeats = parser.parse_args(arguments).repeats
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pairs = (
        ("F.cross_entropy", "quick"),
        ("CrossEntropyLoss", "WSMLoss"),
        ("F.cross_entropy", "WSMLoss"),
    )
    print(f"{'shape':>11}  {'plain':<17}{'us':>8}  {'re-weighted':<12}{'us':>8}  {'ratio':>6}")
    for samples, classes in SHAPES:
        times = measure(samples, classes, repeats)
        for plain, ours in pairs:
            ratio = statistics.median(b / a for a, b in zip(times[plain], times[ours]))
            before, after = statistics.median(times[plain]), statistics.median(times[ours])
            shape = f"({samples}, {classes})"
            print(f"{shape:>11}  {plain:<17}{before:8.1f}  {ours:<12}{after:8.1f}  {ratio:6.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
