"""The sums of a round: a tree whose shape, and so whose bits, depend on the places of the clients alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrecall.algorithms import FedAvg
from fedrecall.client.sums import LEAF, Sums, SumTree, UpdateGeometry
from fedrecall.client.tasks import TrainTask
from fedrecall.client.update import Update


def results(count: int, seed: int = 0) -> list[Update]:
    """Clients whose sums depend on the order: vectors over many magnitudes."""
    random = np.random.default_rng(seed)
    made = []
    for order in range(count):
        w = (random.normal(size=40) * 10.0 ** random.integers(-12, 12, 40)).astype("float32")
        buffers = {"b": torch.from_numpy(w[:8].copy()), "i": torch.tensor([order % 7])}
        task = TrainTask(1, order, client=count - order)
        samples = int(random.integers(1, 1000))
        sent, weights = {"w": torch.from_numpy(w)}, {"w": float(samples)}
        made.append(Update(task, sent, buffers, weights, 0, samples, 3, float(random.random())))
    return made


def tree_of(parts: list[Update], sent: dict[str, torch.Tensor] | None = None) -> SumTree:
    tree = SumTree(sent)
    for result in parts:
        result.add_to(tree, FedAvg())
    return tree


def by_hand(vectors: list[np.ndarray]) -> np.ndarray:
    """Sixteen at a time, each group in order, until one is left."""
    while len(vectors) > 1:
        groups = [vectors[i : i + 16] for i in range(0, len(vectors), 16)]
        vectors = []
        for group in groups:
            total = np.zeros_like(group[0])
            for vector in group:
                total = total + vector
            vectors.append(total)
    return vectors[0]


@pytest.mark.parametrize("count", [1, 2, 16, 17, 32, 100, 256, 257, 300])
def test_sums_are_those_of_a_tree_by_hand(count: int) -> None:
    made = results(count)
    vectors = [result.samples * result.sent["w"].double().numpy() for result in made]
    total = tree_of(made).total()
    np.testing.assert_array_equal(total.tensors["w"].numpy(), by_hand(vectors))
    assert total.totals["w"] == total.samples == sum(result.samples for result in made)
    assert total.counters is not None
    assert total.counters.tolist() == [min(count - 1, 6)]


def test_up_to_sixteen_clients_are_one_plain_sum() -> None:
    made = results(LEAF)
    total = np.zeros(40)
    for result in made:
        total += result.samples * result.sent["w"].double().numpy()
    np.testing.assert_array_equal(tree_of(made).total().tensors["w"].numpy(), total)


def same(a: Sums, b: Sums) -> bool:
    assert a.floats is not None
    assert b.floats is not None
    norms = a.updates.norms == b.updates.norms and torch.equal(a.updates.total, b.updates.total)  # type: ignore[arg-type]
    vectors = torch.equal(a.tensors["w"], b.tensors["w"]) and torch.equal(a.floats, b.floats)
    return norms and vectors and (a.totals, a.samples, a.loss) == (b.totals, b.samples, b.loss)


@pytest.mark.parametrize("count", [40, 256, 700])
@pytest.mark.parametrize("level", [0, 1])
def test_whole_nodes_added_up_elsewhere_give_the_same_bits(count: int, level: int) -> None:
    made, sent = results(count), {"w": torch.zeros(40)}
    size, tree = LEAF ** (level + 1), SumTree(sent)
    for start in range(0, count, size):
        part = made[start : start + size]
        if (start // size) % 3 == 1:  # this one by its clients, here
            for result in part:
                result.add_to(tree, FedAvg())
        else:
            tree.graft(level, start // size, tree_of(part, sent).total())
    assert same(tree.total(), tree_of(made, sent).total())


def test_a_client_that_is_left_out_does_not_move_the_others() -> None:
    made = results(40)
    left = [result for result in made if result.task.order != 20]
    vectors = [result.samples * result.sent["w"].double().numpy() for result in made]
    leaves = [by_hand(vectors[:16]), by_hand(vectors[16:20] + vectors[21:32]), by_hand(vectors[32:])]
    np.testing.assert_array_equal(tree_of(left).total().tensors["w"].numpy(), by_hand(leaves))


def test_a_leaf_without_any_client_is_no_part_of_the_sum() -> None:
    made = [result for result in results(40) if not 16 <= result.task.order < 32]
    vectors = [result.samples * result.sent["w"].double().numpy() for result in made]
    expected = by_hand(vectors[:16]) + by_hand(vectors[16:])
    np.testing.assert_array_equal(tree_of(made).total().tensors["w"].numpy(), expected)


def test_no_client_is_no_samples() -> None:
    assert SumTree().total().samples == 0


def test_updates_of_parts_are_those_of_all() -> None:
    whole, first, second = UpdateGeometry(), UpdateGeometry(), UpdateGeometry()
    for part, vector in [(first, [3.0, 4.0]), (first, [0.0, 0.0]), (second, [0.0, 2.0])]:
        whole.add(torch.tensor(vector))
        part.add(torch.tensor(vector))
    first.add_all(second)
    assert first.metrics() == whole.metrics() == {"update_norm": 7 / 3, "update_cosine": pytest.approx(0.8)}
