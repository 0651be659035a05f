"""Sums reduced on the nodes of a cluster have the bits of a sum in one place, whatever is lost on the way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecall.algorithms import FedAvg
from fedrecall.client.partial_sums import PartialSum
from fedrecall.client.sums import LEAF, Sums, SumTree
from fedrecall.client.tasks import TrainTask
from fedrecall.client.update import Update
from fedrecall.core.vector import Payload, Tensors
from fedrecall.engines.messages import NodeDone, StoredSum
from fedrecall.engines.ray.reduction import LostError, NodeReduction, TreeReduction
from fedrecall.engines.task_chunks import TaskChunk, stack_results

PAYLOAD = Payload((6, 6), (0, 0))
SENT = {"w": torch.ones(6)}


def trained(task: TrainTask) -> Update:
    """What a client sends: numbers over many magnitudes, so that sums depend on their order; every ninth not
    finite."""
    random = np.random.default_rng(task.order)
    w = torch.from_numpy(random.normal(size=6) * 10.0 ** random.integers(-12, 12, 6)).float()
    if task.order % 9 == 4:
        w[2] = torch.nan
    samples = 1 + task.order % 50
    sent, weights = {"w": w}, {"w": float(samples)}
    return Update(task, sent, {}, weights, task.round, samples, steps=2, loss=0.1, wire_bytes=6 * 4)


class FakeCluster:
    """Does what workers do, in this process; what lies on it can be lost."""

    def __init__(self, count: int, size: int) -> None:
        self.kept: dict[int, Tensors] = {}
        self.tasks = [TrainTask(3, order, 100 + order) for order in range(count)]
        self.work = TreeReduction(self.tasks, size, self.fetch, track_updates=True)
        self.trained, self.numbers = 0, itertools.count()

    def keep(self, vectors: Tensors) -> int:
        reference = next(self.numbers)
        self.kept[reference] = vectors
        return reference

    def fetch(self, reference: int) -> Tensors:
        if reference not in self.kept:
            raise LostError
        return {name: tensor.clone() for name, tensor in self.kept[reference].items()}

    def leaf(self, results: list[Update]) -> tuple[StoredSum, int]:
        summed = PartialSum.leaf(results, FedAvg(), SumTree(SENT))
        dropped = [result.task.order for result in summed.dropped]
        return StoredSum(summed.sums.scalars(), dropped, summed.wire_bytes), self.keep(summed.sums.vectors())

    def carry_out(self, chunk: TaskChunk) -> None:
        """Do what the chunk asks for, unless a part of it is lost."""
        try:
            self.work.done(chunk, *self.answer(chunk))
        except LostError:
            assert isinstance(chunk, NodeReduction)
            self.work.parts_lost(chunk.node)

    def answer(self, chunk: TaskChunk) -> tuple[StoredSum | NodeDone, int]:
        if isinstance(chunk, NodeReduction) and chunk.children:
            first, *later = [Sums.of(self.fetch(node.vectors), node.added.scalars) for node in chunk.children]
            for part in later:
                first.add_all(part)
            return StoredSum(first.scalars(), [], 0), self.keep(first.vectors())
        if isinstance(chunk, NodeReduction):
            for part in chunk.leaf_parts:
                self.fetch(part.vectors)
            return self.leaf([trained(task) for part in chunk.leaf_parts for task in part.tasks])
        results = [trained(task) for task in chunk.tasks]
        self.trained += len(results)
        scalars, stacks = stack_results(results)
        if self.work.is_leaf(chunk):
            added, vectors = self.leaf(results)
            return NodeDone(scalars, None, added, {}), vectors
        vectors = self.keep({name: torch.stack(stack) for name, stack in stacks.items()})
        return NodeDone(scalars, None, None, {}), vectors


def expected(tasks: list[TrainTask]) -> Sums:
    tree = SumTree(SENT)
    for task in tasks:
        good, _ = trained(task).finite_part()
        if good:
            good.add_to(tree, FedAvg())
    return tree.total()


def check(given_back: list[PartialSum], tasks: list[TrainTask]) -> None:
    tree = SumTree(SENT)
    for summed in given_back:
        summed.add_to(tree, FedAvg())
    found, wanted = tree.total(), expected(tasks)
    assert torch.equal(found.tensors["w"], wanted.tensors["w"])
    assert (found.totals, found.samples, found.loss) == (wanted.totals, wanted.samples, wanted.loss)
    assert found.updates.metrics() == wanted.updates.metrics()
    bad = [task.client for task in tasks if task.order % 9 == 4]
    assert [result.task.client for summed in given_back for result in summed.dropped] == bad
    good = [task.client for task in tasks if task.client not in bad]
    assert [result.task.client for summed in given_back for result in summed.accepted] == good
    assert sum(summed.wire_bytes for summed in given_back) == len(good) * 6 * 4


@pytest.mark.parametrize(("count", "size"), [(17, 1), (40, 16), (256, 3), (300, 100), (300, 1), (4200, 16)])
def test_sums_have_the_bits_of_one_place(count, size) -> None:
    cluster, given_back = FakeCluster(count, size), []
    while not cluster.work.over():
        cluster.carry_out(cluster.work.next(0))
        given_back += cluster.work.ready()
    check(given_back, cluster.tasks)
    assert len(given_back) <= LEAF  # so few are left to be added up by the one that asks
    assert cluster.trained == count


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_whatever_is_lost_is_made_again_with_the_same_bits(data) -> None:
    count, size = data.draw(st.integers(17, 600)), data.draw(st.sampled_from([1, 4, 16]))
    cluster, given_back, under_way, losses = FakeCluster(count, size), [], [], 0
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    while not cluster.work.over():
        while len(under_way) < 4 and (chunk := cluster.work.next(0)) is not None:
            under_way.append(chunk)
        assert under_way
        chunk = under_way.pop(random.integers(len(under_way)))
        kind = random.integers(12) if losses < 20 else 11
        losses += kind < 2
        if kind == 0:
            cluster.work.lost(chunk)
        else:
            cluster.carry_out(chunk)
        if kind == 1 and cluster.kept:
            del cluster.kept[int(random.choice(list(cluster.kept)))]
        given_back += cluster.work.ready()
    check(given_back, cluster.tasks)


def test_sums_go_before_more_training() -> None:
    cluster = FakeCluster(40, 16)
    first, second = cluster.work.next(0), cluster.work.next(1)
    assert (first.places[0], second.places[0]) == (0, 16)
    rows = FakeCluster(40, 8)
    for _ in range(2):
        rows.carry_out(rows.work.next(0))
    assert isinstance(rows.work.next(0), NodeReduction)
