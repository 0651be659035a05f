"""The server update: from the sums over a round's clients to the server's new state."""

from __future__ import annotations

from fedrecall.algorithms.base import Algorithm, Population
from fedrecall.client.sums import Sums
from fedrecall.vector import Tensors


def updated_server(algorithm: Algorithm, before: Tensors, sums: Sums, population: Population) -> Tensors:
    """The algorithm's update, rounded once to the model's precision."""
    dtype = before["w"].dtype
    new = algorithm.aggregate(before, sums.tensors, sums.totals, population)
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in new.items()}


def updated_buffers(before: Tensors, sums: Sums) -> Tensors:
    """Float buffers are means, counters the largest; those of before, if the clients keep theirs."""
    if sums.floats is None or sums.counters is None:
        return before
    return {"b": (sums.floats / sums.samples).to(before["b"].dtype), "i": sums.counters}
