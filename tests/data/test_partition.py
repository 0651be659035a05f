"""Every sample has one client or none, equal sizes are equal, and the draws follow their distribution."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecall.data.assignment import Assignment, label_counts
from fedrecall.data.partition import (
    PARTITIONS,
    Classwise,
    Dirichlet,
    Iid,
    Natural,
    Shards,
)
from fedrecall.data.partition_draws import dirichlet_shares, draw_classes
from fedrecall.errors import InputError


def balanced(samples: int, classes: int) -> np.ndarray:
    return np.random.default_rng(7).permutation(np.arange(samples) % classes)


def sizes(assignment: Assignment) -> list[int]:
    return np.bincount(assignment.client[assignment.client >= 0], minlength=assignment.clients).tolist()


def counts(assignment: Assignment, labels: np.ndarray, classes: int) -> np.ndarray:
    return label_counts(assignment.client, labels, assignment.clients, classes)


# --- equal-size Dirichlet


def test_all_samples_are_shared_out_equally_for_100_seeds_at_alpha_001():
    labels = balanced(5000, 10)
    for seed in range(100):
        assignment = Dirichlet(alpha=0.01, clients=100, seed=seed).assign(labels, 10)
        assert sizes(assignment) == [50] * 100
        assert (assignment.client >= 0).all()
        assert assignment.validation.sum() == 100 * 5


@settings(max_examples=150, deadline=None)
@given(
    clients=st.integers(1, 30),
    samples=st.integers(1, 300),
    classes=st.integers(1, 12),
    alpha=st.floats(1e-6, 1e6),
    seed=st.integers(0, 2**63 - 1),
    split=st.sampled_from(["shuffled", "draw_order"]),
)
def test_any_dirichlet_partition_is_equal_in_size_and_loses_nothing(clients, samples, classes, alpha, seed, split):
    clients = min(clients, samples)
    labels = np.random.default_rng(seed).integers(0, classes, samples)
    assignment = Dirichlet(alpha, clients, validation=0.1, seed=seed, split=split).assign(labels, classes)
    size = samples // clients
    assert sizes(assignment) == [size] * clients
    assert (assignment.client == -1).sum() == samples - clients * size
    assert (counts(assignment, labels, classes).sum(axis=0) <= np.bincount(labels, minlength=classes)).all()
    for k in range(clients):
        assert assignment.validation[assignment.client == k].sum() == min(round(size * 0.1), size - 1)


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-3, 1e6, 1e300])
def test_extreme_alpha_still_fills_every_client(alpha):
    assert sizes(Dirichlet(alpha=alpha, clients=7).assign(balanced(700, 5), 5)) == [100] * 7


def test_left_over_samples_are_unassigned():
    assignment = Dirichlet(clients=30).assign(balanced(1000, 10), 10)  # 30 x 33 = 990
    assert (assignment.client == -1).sum() == 10
    assert not assignment.validation[assignment.client == -1].any()


@pytest.mark.parametrize(
    ("samples", "clients", "train", "validation"), [(50_000, 100, 450, 50), (50_000, 30, 1499, 167)]
)
def test_a_client_keeps_a_tenth_for_validation(samples, clients, train, validation):
    assignment = Dirichlet(clients=clients, validation=0.1).assign(balanced(samples, 10), 10)
    for k in range(clients):
        mine = assignment.client == k
        assert (mine & ~assignment.validation).sum() == train
        assert (mine & assignment.validation).sum() == validation


def test_validation_leaves_one_sample_to_train_on():
    assignment = Dirichlet(clients=10, validation=0.9).assign(balanced(20, 2), 2)  # round(2 x 0.9) = 2, but 2 - 1
    assert assignment.validation.sum() == 10


def test_no_validation_is_allowed():
    assert not Dirichlet(clients=10, validation=0).assign(balanced(100, 2), 2).validation.any()


def test_few_clients_have_one_class_at_alpha_01():
    # Dir(0.1, .., 0.1) over 10 classes: 0.4 % of clients; Dir(0.1 / 10, ..), the trap, gives 56 %.
    labels = np.arange(1_000_000) % 10
    assignment = Dirichlet(alpha=0.1, clients=2000, seed=1).assign(labels, 10)
    one_class = ((counts(assignment, labels, 10) > 0).sum(axis=1) == 1)[:1000]  # before classes run out
    assert 0.0005 < one_class.mean() < 0.015


def test_class_shares_have_the_variance_of_the_dirichlet():
    # Dir(alpha, .., alpha), C entries: variance (1/C)(1 - 1/C) / (C alpha + 1) of each share.
    q = dirichlet_shares(np.random.default_rng(0), 0.1, (100_000, 10))
    assert q.sum(axis=1) == pytest.approx(1)
    assert q.mean(axis=0) == pytest.approx(0.1, abs=0.004)
    assert q.var(axis=0) == pytest.approx(0.1 * 0.9 / 2, rel=0.03)


def test_small_shares_vanish_in_no_class_more_than_in_another():
    zeros = (dirichlet_shares(np.random.default_rng(0), 0.002, (50_000, 10)) == 0).mean(axis=0)
    assert zeros.mean() > 0.1  # the case the fallback is for does occur
    assert zeros == pytest.approx(zeros.mean(), rel=0.05)


def one_by_one(seed: int, labels: np.ndarray, classes: int, clients: int, alpha: float) -> np.ndarray:
    """The definition, a draw at a time: the class of each draw, [clients, draws]."""
    rng = np.random.default_rng(seed)
    left = np.bincount(labels, minlength=classes)
    drawn = np.empty((clients, len(labels) // clients), dtype=int)
    for k in range(clients):
        q = rng.dirichlet([alpha] * classes)
        for j in range(drawn.shape[1]):
            p = np.where(left > 0, q, 0)
            p = p if p.sum() > 0 else left
            drawn[k, j] = rng.choice(classes, p=p / p.sum())
            left[drawn[k, j]] -= 1
    return drawn


def test_draws_agree_with_one_by_one_draws_where_classes_run_out():
    labels, runs = np.array([0] * 9 + [1] * 4 + [2] * 3), 2500
    everything, last, expected, expected_last = (np.zeros((runs, 3, 3)) for _ in range(4))
    for seed in range(runs):
        assignment = Dirichlet(0.5, 3, validation=0.4, seed=seed, split="draw_order").assign(labels, 3)
        everything[seed] = counts(assignment, labels, 3)
        last[seed] = label_counts(np.where(assignment.validation, assignment.client, -1), labels, 3, 3)
        drawn = one_by_one(seed, labels, 3, 3, 0.5)
        expected[seed] = [np.bincount(row, minlength=3) for row in drawn]
        expected_last[seed] = [np.bincount(row[-2:], minlength=3) for row in drawn]  # round(5 x 0.4) = 2
    # Standard error of a difference of two means: 0.045 for counts (sd 1.6), 0.022 for the last two (sd 0.8).
    # With shuffled samples the last two would be off by 0.27.
    assert everything.mean(axis=0) == pytest.approx(expected.mean(axis=0), abs=0.2)
    assert everything.std(axis=0) == pytest.approx(expected.std(axis=0), abs=0.15)
    assert last.mean(axis=0) == pytest.approx(expected_last.mean(axis=0), abs=0.1)


def test_an_exhausted_class_leaves_the_draw():
    q, left = np.array([0.9, 0.05, 0.05]), np.array([3, 50, 50])
    for seed in range(50):
        drawn = draw_classes(np.random.default_rng(seed), q, left, 60)
        assert np.bincount(drawn, minlength=3)[0] == 3
        assert len(drawn) == 60
    assert left.tolist() == [3, 50, 50]  # the caller's count is the caller's


def test_without_mass_left_classes_are_drawn_in_proportion_to_what_remains():
    q, left = np.array([1.0, 0.0, 0.0]), np.array([2, 30, 10])
    drawn = [np.bincount(draw_classes(np.random.default_rng(seed), q, left, 10), minlength=3) for seed in range(1000)]
    assert np.mean(drawn, axis=0) == pytest.approx([2, 6, 2], abs=0.15)  # 8 draws, three to one


def test_draw_order_keeps_a_class_that_ran_out_from_the_last_draws():
    labels = np.array([0] * 10 + [1] * 90)  # one client draws all; at equal shares class 0 is gone after some 20
    for seed in range(20):
        partition = Dirichlet(alpha=1e6, clients=1, validation=0.1, seed=seed, split="draw_order")
        assert labels[partition.assign(labels, 2).validation].tolist() == [1] * 10
    shuffled = [Dirichlet(1e6, 1, 0.1, seed).assign(labels, 2).validation for seed in range(200)]
    assert np.mean([(labels[v] == 0).sum() for v in shuffled]) == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize("kind", [Dirichlet, Classwise])
def test_any_sample_of_a_class_may_go_to_any_client(kind):
    labels = np.arange(40) % 2
    second = [kind(alpha=1e6, clients=2, seed=seed).assign(labels, 2).client for seed in range(400)]
    assert np.mean(second, axis=0) == pytest.approx(0.5, abs=0.12)  # sd 0.025 for each sample


def test_a_million_samples_go_to_ten_thousand_clients():
    assert sizes(Dirichlet(clients=10_000).assign(np.arange(1_000_000) % 10, 10)) == [100] * 10_000


# --- the other partitions


def test_classwise_shares_out_everything_in_unequal_sizes():
    labels = balanced(2000, 10)
    assignment = Classwise(alpha=0.5, clients=20, min_size=10).assign(labels, 10)
    assert (assignment.client >= 0).all()
    assert min(sizes(assignment)) >= 10
    assert len(set(sizes(assignment))) > 10


def test_classwise_cuts_each_class_by_a_dirichlet_draw_over_clients():
    # Dir(1, 1): the first of two clients has a uniform share of each class, mean 1/2 and variance 1/12.
    labels = balanced(2000, 2)
    runs = [Classwise(alpha=1.0, clients=2, seed=seed).assign(labels, 2) for seed in range(600)]
    shares = np.array([counts(run, labels, 2)[0] / 1000 for run in runs])
    assert shares.mean() == pytest.approx(1 / 2, abs=0.04)
    assert shares.var() == pytest.approx(1 / 12, rel=0.15)
    assert np.corrcoef(shares.T)[0, 1] == pytest.approx(0, abs=0.15)


def test_classwise_says_what_to_change_when_no_draw_is_good():
    partition = Classwise(alpha=0.001, clients=50, min_size=10)
    with pytest.raises(InputError, match=r"partition\.min_size is 10 .* raise partition\.alpha, or lower"):
        partition.assign(balanced(1000, 5), 5)


def test_iid_clients_have_nearly_the_pooled_mix():
    labels = balanced(10_003, 5)
    assignment = Iid(clients=10).assign(labels, 5)
    assert sizes(assignment) == [1000] * 10
    assert (assignment.client == -1).sum() == 3
    assert counts(assignment, labels, 5) == pytest.approx(200, abs=60)  # sd 12


def test_shards_give_each_client_few_classes():
    labels = balanced(6000, 10)  # 20 shards of 300: each holds one class, as 600 is two shards
    assignment = Shards(clients=10, shards_per_client=2).assign(labels, 10)
    table = counts(assignment, labels, 10)
    assert sizes(assignment) == [600] * 10
    assert set(table.ravel().tolist()) <= {0, 300, 600}
    assert ((table > 0).sum(axis=1) <= 2).all()


def test_shards_are_dealt_at_random():
    labels = balanced(200, 10)
    first = [labels[Shards(clients=10, seed=seed).assign(labels, 10).client == 0] for seed in range(50)]
    assert set(np.concatenate(first).tolist()) == set(range(10))


def test_samples_that_fill_no_shard_are_unassigned_whatever_their_class():
    labels = balanced(1090, 2)  # 100 shards of 10
    left = [labels[Shards(clients=50, seed=seed).assign(labels, 2).client == -1] for seed in range(20)]
    assert {len(some) for some in left} == {90}
    assert np.mean(left) == pytest.approx(0.5, abs=0.1)


def test_natural_numbers_clients_by_sorted_id_and_drops_small_ones():
    ids = np.array(["w9", "w1", "w5", "w1", "w9", "w1"])
    assignment = Natural(validation=0, min_samples=2).assign(np.zeros(6, dtype=int), 1, ids)
    assert assignment.client.tolist() == [1, 0, -1, 0, 1, 0]
    assert assignment.clients == 2


def test_natural_keeps_clients_that_are_numbered_already():
    ids = np.array([2, 0, 10, 1, 3, 4, 5, 6, 7, 8, 9, 2])
    assert Natural(validation=0).assign(np.zeros(12, dtype=int), 1, ids).client.tolist() == ids.tolist()


def test_natural_takes_strings_in_an_object_array():
    ids = np.array(["b", "a", "b"], dtype=object)
    assert Natural(validation=0).assign(np.zeros(3, dtype=int), 1, ids).client.tolist() == [1, 0, 1]


def test_natural_keeps_validation_data_of_each_client_by_its_size():
    ids = np.repeat([0, 1, 2], [1, 10, 25])
    assignment = Natural(validation=0.2).assign(np.zeros(36, dtype=int), 1, ids)
    assert [int(assignment.validation[ids == k].sum()) for k in range(3)] == [0, 2, 5]


# --- what all of them share

EACH = [
    Dirichlet(alpha=0.3, clients=8),
    Dirichlet(alpha=0.3, clients=8, split="draw_order"),
    Classwise(alpha=1.0, clients=8),
    Iid(clients=8),
    Shards(clients=8),
    Natural(),
]
LABELS = balanced(805, 5)
IDS = np.arange(805) % 8


@pytest.mark.parametrize("partition", EACH, ids=repr)
def test_the_same_seed_gives_the_same_digest_and_another_seed_another(partition):
    again = type(partition)(**vars(partition))
    other = type(partition)(**{**vars(partition), "seed": 1})
    digest = partition.assign(LABELS, 5, IDS).digest()
    assert again.assign(LABELS, 5, IDS).digest() == digest
    assert other.assign(LABELS, 5, IDS).digest() != digest


@pytest.mark.parametrize("partition", EACH, ids=repr)
def test_numpys_global_generator_is_neither_read_nor_moved(partition):
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    partition.assign(LABELS, 5, IDS)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


@pytest.mark.parametrize("partition", EACH, ids=repr)
def test_the_last_clients_are_held_out_and_have_no_validation_data(partition):
    held = type(partition)(**{**vars(partition), "held_out": 3}).assign(LABELS, 5, IDS)
    assert (held.clients, held.held_out) == (8, 3)
    assert not held.validation[held.client >= 5].any()
    assert all(held.validation[held.client == k].any() for k in range(5))


@pytest.mark.parametrize("partition", EACH, ids=repr)
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64])
def test_labels_may_be_of_any_integer_type(partition, dtype):
    assert partition.assign(LABELS.astype(dtype), 5, IDS).digest() == partition.assign(LABELS, 5, IDS).digest()


@pytest.mark.parametrize("partition", EACH, ids=repr)
def test_arrays_are_of_the_types_that_partition_npz_promises(partition):
    assignment = partition.assign(LABELS, 5, IDS)
    assert (assignment.client.dtype, assignment.validation.dtype) == (np.int32, np.bool_)
    assert assignment.client.shape == assignment.validation.shape == LABELS.shape


def test_validation_data_are_chosen_at_random():
    chosen = np.mean([Iid(clients=1, validation=0.5, seed=s).assign(LABELS, 5).validation for s in range(200)], axis=0)
    assert chosen == pytest.approx(0.5, abs=0.2)  # sd 0.035 for each sample


def test_the_file_holds_client_and_validation_and_nothing_else(tmp_path: Path):
    assignment = Iid(clients=3).assign(LABELS, 5)
    assignment.save(tmp_path / "run")
    with np.load(tmp_path / "run" / "partition.npz", allow_pickle=False) as file:
        assert sorted(file.files) == ["client", "validation"]
        assert (file["client"] == assignment.client).all()
        assert (file["validation"] == assignment.validation).all()


def test_the_digest_is_of_little_endian_clients_and_validation_bytes():
    assignment = Assignment(np.array([1, -1, 0], np.int32), np.array([False, False, True]), clients=2)
    content = bytes([1, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 1])
    assert assignment.digest() == hashlib.sha256(content).hexdigest()


def test_partitions_are_listed_by_their_names():
    assert list(PARTITIONS) == ["dirichlet", "classwise", "iid", "shards", "natural"]
    assert PARTITIONS["dirichlet"]() == Dirichlet(0.1, 100, 0.1, 0, 0, "shuffled")
