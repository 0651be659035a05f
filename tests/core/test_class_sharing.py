"""How classes share clients, against tables that are small enough to count by hand, and when WSM is warned about."""

from __future__ import annotations

import numpy as np
import pytest

from fedrecall import WSM, CrossEntropy
from fedrecall.core.class_sharing import ClassSharing


def table(clients: int, *sets: set[int], each: int = 10, classes: int = 10) -> np.ndarray:
    """Clients in turn with `each` samples of the classes of the sets."""
    counts = np.zeros((clients, classes), int)
    for k in range(clients):
        counts[k, sorted(sets[k % len(sets)])] = each
    return counts


RING = table(20, *({c, (c + 1) % 10} for c in range(10)))
PAIRS = table(20, *({2 * c, 2 * c + 1} for c in range(5)))
SINGLES = table(20, *({c} for c in range(10)))
HALVES = table(20, set(range(5)), set(range(5, 10)))
BRIDGED = HALVES.copy()
BRIDGED[0, 5] = 1
EVERYTHING = table(20, set(range(10)))


@pytest.mark.parametrize(
    ("counts", "parts", "clients_per_pair", "unshared"),
    [
        (RING, 1, 20 / 45, 35 / 45),  # ten of 45 pairs with two clients each
        (PAIRS, 5, 20 / 45, 40 / 45),  # five with four
        (SINGLES, 10, 0, 1),
        (HALVES, 2, 20 * 10 / 45, 25 / 45),  # 2 * 10 pairs with ten clients each
        (BRIDGED, 1, (20 * 10 + 5) / 45, 20 / 45),  # and five pairs with the one client
        (EVERYTHING, 1, 20, 0),
    ],
)
def test_parts_and_clients_per_pair(counts, parts, clients_per_pair, unshared) -> None:
    found = ClassSharing.of(counts)
    assert (found.classes, found.parts) == (10, parts)
    assert found.clients_per_pair == pytest.approx(clients_per_pair)
    assert found.unshared_pairs == pytest.approx(unshared)


def test_a_client_counts_by_its_samples_of_the_rarer_class() -> None:
    counts = np.array([[6, 9], [2, 1], [0, 5]])  # w = 6, 1, 0: 7 ** 2 / 37
    assert ClassSharing.of(counts).clients_per_pair == pytest.approx(49 / 37)
    assert ClassSharing.of(1000 * counts).clients_per_pair == pytest.approx(49 / 37)


def test_classes_that_nobody_has_do_not_count() -> None:
    assert ClassSharing.of(table(4, {1, 3})) == ClassSharing.of(table(4, {0, 1}, classes=2))


@pytest.mark.parametrize("counts", [np.zeros((3, 4), int), table(3, {2})])
def test_fewer_than_two_classes_have_no_pairs(counts) -> None:
    found = ClassSharing.of(counts)
    assert (found.clients_per_pair, found.unshared_pairs, found.too_little(3)) == (0, 0, "")


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        (RING, "78 % of the pairs of classes have no client in common"),
        (PAIRS, "the classes fall into 5 groups without a client that has classes of two of them"),
        (SINGLES, "no client has two classes"),
        (HALVES, "the classes fall into 2 groups without a client that has classes of two of them"),
        (BRIDGED, ""),
        (EVERYTHING, ""),
        # 90 clients, each pair at two of them: 2 of 90 is below 3.75 / 90
        (
            table(90, *({a, b} for a in range(10) for b in range(a))),
            "two classes have effectively 2.0 of 90 clients in common",
        ),
        # 4 of 10 classes each, at random: 12 / 90 of the clients
        (table(210, *({a, b, c, d} for a in range(10) for b in range(a) for c in range(b) for d in range(c))), ""),
        (table(8, {0, 1}, classes=2), ""),  # two classes, and every client has both
        (table(9, {0, 1}, {1, 2}, {0, 2}, classes=3), ""),  # a third of the clients is enough
    ],
)
def test_who_shares_too_little(counts, reason) -> None:
    assert ClassSharing.of(counts).too_little(len(counts)) == reason


def test_wsm_says_it_with_the_remedy_and_others_do_not() -> None:
    ring, singles = ClassSharing.of(RING), ClassSharing.of(SINGLES)
    (said,) = WSM().note_on_sharing(ring, 20)
    assert said.startswith("78 % of the pairs of classes have no client in common, and WSM without smoothing")
    assert "objective.smoothing=0.03" in said
    (said,) = WSM().note_on_sharing(singles, 20)
    assert "objective=cross_entropy" in said
    assert "smoothing=" not in said
    for other in (WSM(smoothing=0.03), WSM(tau=0), WSM(distill=0.1), CrossEntropy()):
        assert not list(other.note_on_sharing(ring, 20))
    assert not list(WSM().note_on_sharing(ClassSharing.of(EVERYTHING), 20))


def test_a_card_brings_it_back_and_an_older_one_does_not() -> None:
    found = ClassSharing.of(RING)
    assert ClassSharing.from_card({"class_sharing": found.tree()}) == found
    for card in ({}, {"class_sharing": None}, {"class_sharing": {"parts": 1}}):
        assert ClassSharing.from_card(card) is None
