"""A partition by name, and one of the user's own."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedrecall import Dirichlet, Federation, Iid, InputError, Partition

x, y = np.zeros((40, 3), np.float32), np.arange(40) % 4


def by_class(labels, num_classes, rng):
    return labels


def some(labels, num_classes, rng, clients: int = 2, share: float = 1.0):
    client = rng.integers(0, clients, len(labels))
    return np.where(rng.random(len(labels)) < share, client, -1)


def made(partition) -> Federation:
    return Federation.from_arrays(x, y, partition=partition)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"name": "iid", "clients": 5}, Iid(clients=5)),
        ({"name": "dirichlet", "clients": 4, "alpha": 1.0, "seed": 3}, Dirichlet(clients=4, alpha=1.0, seed=3)),
        ({"name": "fedrecall:Iid", "clients": 5}, Iid(clients=5)),
    ],
)
def test_a_name_means_what_it_means_in_a_recipe(given, same) -> None:
    assert made(given).assignment.digest() == made(same).assignment.digest()


def test_a_name_alone_and_a_class_have_the_defaults() -> None:
    many = np.zeros((300, 3), np.float32), np.arange(300) % 4
    for given in ("iid", Iid):
        assert len(Federation.from_arrays(*many, partition=given)) == 100


def test_a_function_says_the_client_of_each_sample() -> None:
    federation = made(by_class)
    assert [sorted(set(y[federation.train_indices(k)])) for k in range(4)] == [[0], [1], [2], [3]]
    assert [len(federation.validation_indices(k)) for k in range(4)] == [1, 1, 1, 1]  # a tenth of ten


def test_samples_that_nobody_gets_stay_unassigned() -> None:
    federation = made(lambda labels, num_classes, rng: np.where(labels == 3, -1, labels))
    assert len(federation) == 3
    assert (federation.assignment.client == -1).sum() == 10


@dataclass(frozen=True)
class Halves(Partition):
    validation: float = 0.5
    seed: int = 0
    held_out: int = 0

    def deal(self, rng, labels, num_classes, ids):
        return np.arange(len(labels)), np.array([len(labels) // 2, len(labels) - len(labels) // 2])


def test_a_class_of_ones_own_deals_the_samples() -> None:
    for given in (Halves, Halves()):
        assert made(given).assignment.client.tolist() == [0] * 20 + [1] * 20


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda labels, num_classes, rng: labels * 2, "client 1 of 7 has no samples"),
        (lambda labels, num_classes, rng: 3, "returned 3; an array with a client's number for each of 40 samples"),
        (lambda labels, num_classes, rng: labels / 2, "an array with a client's number for each of 40 samples"),
        (lambda labels, num_classes, rng: labels - 2, "returned numbers from -2 to 1; clients from 0 on"),
        (lambda labels, num_classes, rng: 0 * labels - 1, "returned numbers from -1 to -1; clients from 0 on"),
        (lambda labels: labels, "a Partition, its name or a function of (labels, num_classes, rng) was expected"),
        ("idi", "partition is 'idi', which is not known; did you mean 'iid'?"),
        ({"clients": 3}, "partition.name is None; a name was expected"),
        (3, "partition is 3; a Partition, its name or a function of (labels, num_classes, rng) was expected"),
    ],
)
def test_what_is_no_partition_is_one_sentence(given, said) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        made(given)


# --- in a recipe ---


def test_a_function_in_a_recipe_has_its_options_and_those_of_all_partitions(fedrecall, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = f"split_{abs(hash(tmp_path))}"
    Path(f"{module}.py").write_text(
        "def by_turn(labels, num_classes, rng, clients: int):\n    return rng.permutation(len(labels)) % clients\n"
    )
    words = [f'partition={{name: "{module}:by_turn", clients: 8, validation: 0.25, held_out: 1}}']
    done = fedrecall("partition", "demo", *words, "--json")
    assert done.code == 0, done.err
    card = json.loads(done.out)
    assert card["clients"] == 8
    for extra, said in (
        ("{name: %s:by_turn}", "'partition.clients' is missing"),
        ("{name: %s:by_turn, clients: 8, alpha: 1}", "no key 'partition.alpha'"),
        ("{name: %s:by_turn, clients: 8, validation: 2}", "partition.validation is 2"),
    ):
        done = fedrecall("partition", "demo", f"partition={extra % module}", "--json")
        assert (done.code, len(done.err.splitlines())) == (2, 1)
        assert said in done.err


# --- test_fraction ---


def test_a_share_is_drawn_for_the_test_by_a_seed() -> None:
    data = np.arange(40, dtype=np.float32)[:, None], np.arange(40) % 2
    first, again, other = (
        Federation.from_arrays(*data, partition=Iid(clients=3), test_fraction=0.25, test_seed=seed)
        for seed in (1, 1, 2)
    )
    drawn = [set(f.test.x[:, 0].tolist()) for f in (first, again, other)]
    assert len(drawn[0]) == 10
    assert drawn[0] == drawn[1] != drawn[2]
    kept = set(first.train.x[:, 0].tolist())
    assert not kept & drawn[0]
    assert kept | drawn[0] == set(range(40))


def test_clients_that_are_given_stay_who_they_are() -> None:
    clients = [(np.full((20, 1), k, np.float32), np.arange(20) % 2) for k in range(3)]
    federation = Federation.from_clients(clients, test_fraction=0.2, validation=0.0)
    assert len(federation.test) == 12
    for k in range(3):
        assert set(federation.train.x[federation.train_indices(k), 0].tolist()) == {k}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"test_fraction": 0.5, "test": (x, y)}, "test and test_fraction are both given"),
        ({"test_fraction": 1.5}, "test_fraction is 1.5; it must be above 0 and below 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, said) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        Federation.from_arrays(x, y, partition=Iid(clients=3), **options)
    assert not str(caught.value).startswith("data.")


def test_a_client_that_would_be_left_without_samples_is_refused() -> None:
    clients = [(np.zeros((1, 1), np.float32), np.array([k % 2])) for k in range(10)]
    with pytest.raises(InputError, match=r"test_fraction is 0.5, which leaves 5 of 10 clients without samples"):
        Federation.from_clients(clients, test_fraction=0.5)
