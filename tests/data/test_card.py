"""The card's numbers, against a partition small enough to count by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedrecall.data.assignment import Assignment, label_counts
from fedrecall.data.card import card
from fedrecall.data.partition import Dirichlet, Iid
from fedrecall.errors import InputError

#              sample     0  1  2  3  4   5
LABELS = np.array([0, 0, 1, 0, 2, 2])
CLIENT = np.array([0, 0, 0, 1, 1, -1], np.int32)
VALIDATION = np.array([False, False, True, False, False, False])


def small_card(held_out: int = 0, **names):
    return card(Assignment(CLIENT, VALIDATION, clients=2, held_out=held_out), LABELS, 3, **names)


def test_samples_add_up():
    assert small_card()["samples"] == {
        "total": 6, "train": 4, "validation": 1, "held_out": 0, "unassigned": 1,
    }  # fmt: skip


def test_sizes_are_of_train_and_validation_apart():
    assert small_card()["train_size"] == {"min": 2, "median": 2.0, "max": 2}
    assert small_card()["validation_size"] == {"min": 0, "median": 0.5, "max": 1}


def test_missing_classes_are_counted_in_training_samples():
    # Client 0 trains on {0} (its 1 is validation), client 1 on {0, 2}: 2 and 1 of 3 classes are missing.
    assert small_card()["classes_missing"] == {"min": 1, "mean": 1.5, "max": 2}


def test_one_class_clients_are_counted_and_named():
    assert small_card()["one_class_clients"] == {"count": 1, "first": [0]}


def test_at_most_twenty_one_class_clients_are_named():
    client = np.arange(50, dtype=np.int32)
    told = card(Assignment(client, np.zeros(50, bool), clients=50), np.zeros(50, int), 2)["one_class_clients"]
    assert told == {"count": 50, "first": list(range(20))}


def test_skew_is_the_mean_total_variation_distance():
    # Pooled shares (3, 1, 1)/5. Client 0 (2, 1, 0)/3: (1/15 + 2/15 + 3/15)/2 = 1/5. Client 1 (1, 0, 1)/2:
    # (1/10 + 2/10 + 3/10)/2 = 3/10. Mean 1/4.
    assert small_card()["label_skew"] == pytest.approx(0.25)


def test_clients_of_one_class_each_have_the_largest_skew():
    client = np.repeat(np.arange(10, dtype=np.int32), 5)
    told = card(Assignment(client, np.zeros(50, bool), clients=10), client.astype(int), 10)
    assert told["label_skew"] == pytest.approx(0.9)  # 1 - 1/10


def test_held_out_clients_count_in_samples_and_pooled_shares_only():
    told = small_card(held_out=1)
    assert told["samples"]["held_out"] == 2
    assert told["samples"]["train"] == 2
    assert told["classes_missing"] == {"min": 2, "mean": 2.0, "max": 2}
    assert told["label_skew"] == pytest.approx(0.2)
    assert told["class_counts"] == [2, 0, 0]


def test_classes_are_counted_under_their_names():
    told = small_card(class_names=["cat", "dog", "owl"])
    assert told["class_names"] == ["cat", "dog", "owl"]
    assert told["class_counts"] == [3, 0, 1]
    assert small_card()["class_names"] == ["0", "1", "2"]


def test_names_must_match_the_classes():
    with pytest.raises(InputError, match=r"^class_names has 1 names; one for each of 3 classes"):
        small_card(class_names=["cat"])


def test_the_card_carries_the_digest_and_is_json():
    told = small_card()
    assert told["digest"] == Assignment(CLIENT, VALIDATION, clients=2).digest()
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_dirichlet_is_more_skewed_than_iid():
    labels = np.arange(10_000) % 10
    skews = [card(p.assign(labels, 10), labels, 10)["label_skew"] for p in (Dirichlet(0.1, 20), Iid(20))]
    assert skews[0] > 0.5 > 0.1 > skews[1]


def test_label_counts_leave_out_the_unassigned():
    assert label_counts(CLIENT, LABELS, 2, 3).tolist() == [[2, 1, 0], [1, 0, 1]]


def test_a_card_of_ten_thousand_clients_agrees_with_their_sizes():
    labels = np.arange(1_000_000) % 10
    told = card(Iid(clients=10_000).assign(labels, 10), labels, 10)
    assert told["train_size"] == {"min": 90, "median": 90.0, "max": 90}
    assert told["validation_size"] == {"min": 10, "median": 10.0, "max": 10}
