"""What a partition cannot be asked for."""

from __future__ import annotations

import numpy as np
import pytest

from fedrecall.data.partition import PARTITIONS, Classwise, Dirichlet, Iid, Natural, Shards
from fedrecall.errors import InputError


def balanced(samples: int, classes: int) -> np.ndarray:
    return np.random.default_rng(7).permutation(np.arange(samples) % classes)


@pytest.mark.parametrize("name", ["dirichlet", "classwise"])
@pytest.mark.parametrize("alpha", [-1.0, 0, float("inf"), float("nan"), "0.1", True])
def test_alpha_must_be_above_0(name, alpha):
    with pytest.raises(InputError, match=r"^partition\.alpha is .*; it must be above 0"):
        PARTITIONS[name](alpha=alpha)


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("validation", value) for value in (1.0, -0.1, float("nan"), "0.1", None)),
        *(("seed", value) for value in (-1, 0.5, True)),
        *(("held_out", value) for value in (-1, 1.0)),
    ],
)
def test_shared_keys_are_checked_by_every_partition(name, key, value):
    with pytest.raises(InputError, match=rf"^partition\.{key} is '?{value}'?; it must be"):
        PARTITIONS[name](**{key: value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dirichlet(clients=0), "partition.clients is 0; it must be a whole number, at least 1"),
        (lambda: Iid(clients=2.5), "partition.clients is 2.5; it must be a whole number"),
        (lambda: Dirichlet(split="random"), "partition.split is 'random'; it must be shuffled or draw_order"),
        (lambda: Classwise(min_size=0), "partition.min_size is 0; it must be"),
        (lambda: Shards(shards_per_client=0), "partition.shards_per_client is 0; it must be"),
        (lambda: Natural(min_samples=0), "partition.min_samples is 0; it must be"),
        (lambda: Iid(clients=5, held_out=5), "partition.held_out is 5 of 5 clients; at least one must train"),
    ],
)
def test_a_bad_key_is_named_when_the_partition_is_made(make, message):
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (
            Dirichlet(clients=5000),
            "partition.clients is 5000 but there are only 1000 training samples; lower it",
        ),
        (Iid(clients=1001), "partition.clients is 1001 but there are only 1000 training samples"),
        (
            Classwise(clients=101, min_size=10),
            "partition.clients is 101 with partition.min_size 10 but there",
        ),
        (
            Shards(clients=501),
            "partition.clients is 501 with partition.shards_per_client 2 but there are only",
        ),
        (Natural(), "partition.name is natural but this data set has no client ids; choose"),
    ],
)
def test_what_the_data_cannot_give_is_refused_with_the_reason(partition, message):
    with pytest.raises(InputError) as error:
        partition.assign(balanced(1000, 10), 10)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("partition", "ids", "message"),
    [
        (Natural(held_out=2), [0, 0, 1, 1], "partition.held_out is 2 of 2 clients"),
        (
            Natural(min_samples=3),
            [0, 0, 1, 1],
            "partition.min_samples is 3 but the largest client has only 2",
        ),
        (Natural(), [0, 1, 1], "the client ids are of shape (3,); one for each of 4 samples"),
        (Natural(), [0, 1, 1, np.nan], "the client ids are of type float64; they must be"),
        (Natural(), [None, "a", "a", "b"], "the client ids are of type object; they must be"),
    ],
)
def test_ids_that_make_no_clients_are_refused(partition, ids, message):
    with pytest.raises(InputError) as error:
        partition.assign(np.zeros(4, dtype=int), 1, np.array(ids))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([], dtype=int), "the labels are empty"),
        (np.array([0, 3]), "a label is 3 but num_classes is 3"),
        (np.array([-1, 2]), "a label is -1 but num_classes is 3"),
        (np.array([0.0, 1.0]), "the labels are of shape (2,) and type float64"),
        (np.zeros((2, 2), dtype=int), "the labels are of shape (2, 2)"),
    ],
)
def test_labels_that_are_none_are_refused(labels, message):
    with pytest.raises(InputError) as error:
        Iid(clients=1).assign(labels, 3)
    assert str(error.value).startswith(message)
