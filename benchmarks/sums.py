"""What it costs to add a client's vector to a sum whose bits do not depend on who adds.

    python benchmarks/sums.py

`in_order` is one float64 addition in an order that is fixed by a tree: what the engines do. `exact` does not
depend on any order: each product n_k y_k is cut into pieces on fixed grids, whose sums fit into float64 without
rounding. It needs a bound on all numbers before the first is added, which is one more message from each client.
`pairs` is a sum in pairs of float64 (two-sum), whose last bits do depend on the order, however tiny they are.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

SIZES = {"LeNet": 62_016, "ResNet-18": 11_181_642}
CLIENTS = 16


def in_order(vectors: list[Tensor], weights: list[int]) -> Tensor:
    total = torch.zeros_like(vectors[0], dtype=torch.float64)
    for vector, weight in zip(vectors, weights):
        total.add_(vector, alpha=weight)
    return total


def pairs(vectors: list[Tensor], weights: list[int]) -> Tensor:
    total = torch.zeros_like(vectors[0], dtype=torch.float64)
    rest = torch.zeros_like(total)
    for vector, weight in zip(vectors, weights):
        term = vector.double().mul_(weight)
        new = total + term
        there = new - total
        rest += (total - (new - there)) + (term - there)
        total = new
    return total + rest


def exact(vectors: list[Tensor], weights: list[int]) -> Tensor:
    """Pieces of 40 bits on grids below the largest number of all: 13 bits are left for 8192 summands."""
    top = max(float(vector.abs().max()) * weight for vector, weight in zip(vectors, weights))
    grids = [2.0 ** (torch.tensor(top).log2().ceil().item() + 53 - 40 * (level + 1)) * 1.5 for level in range(3)]
    sums = [torch.zeros_like(vectors[0], dtype=torch.float64) for _ in grids]
    for vector, weight in zip(vectors, weights):
        left = vector.double().mul_(weight)
        for grid, total in zip(grids, sums):
            piece = (left + grid).sub_(grid)
            total += piece
            left -= piece
    return sums[0] + (sums[1] + sums[2])


def seconds(way: Callable[[list[Tensor], list[int]], Tensor], vectors: list[Tensor], weights: list[int]) -> float:
    """A client, the median of some turns."""
    times = []
    for _ in range(7):
        began = time.perf_counter()
        way(vectors, weights)
        times.append((time.perf_counter() - began) / len(vectors))
    return statistics.median(times)


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name, size in SIZES.items():
        vectors = [torch.randn(size) * 0.05 for _ in range(CLIENTS)]
        weights = [100 + 7 * k for k in range(CLIENTS)]
        shuffled = torch.randperm(CLIENTS).tolist()
        again = [vectors[k] for k in shuffled], [weights[k] for k in shuffled]
        for way in (in_order, pairs, exact):
            same = torch.equal(way(vectors, weights), way(*again))
            print(f"{name:10} {way.__name__:9} {1e3 * seconds(way, vectors, weights):8.3f} ms a client; "
                  f"{'the same' if same else 'other'} bits in another order", flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
