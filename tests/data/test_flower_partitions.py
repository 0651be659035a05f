"""Partitions to and from the real flwr-datasets, with data in memory and in folders."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest

from fedrecall import Dirichlet, Federation, Iid, Natural
from fedrecall.data.assignment import Assignment
from fedrecall.data.flower_partitions import FlowerPartition, as_flower_partitioner
from fedrecall.errors import InputError

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(importlib.util.find_spec("flwr_datasets") is None, reason="the extra hf is not installed"),
]

LABELS = np.random.default_rng(0).integers(0, 5, 200)


def clients_of(assignment):
    return [np.flatnonzero(assignment.client == k).tolist() for k in range(assignment.clients)]


def rows_of(partitioner, labels, **columns):
    """What the partitioner itself makes of these data: the rows of each partition."""
    from datasets import Dataset

    partitioner.dataset = Dataset.from_dict({"label": labels, **columns, "place": range(len(labels))})
    return [sorted(partitioner.load_partition(k)["place"]) for k in range(partitioner.num_partitions)]


def partitioners():
    from flwr_datasets import partitioner as flower

    return {
        "iid": lambda: flower.IidPartitioner(num_partitions=7),
        "dirichlet": lambda: flower.DirichletPartitioner(7, "label", alpha=0.5, min_partition_size=5, seed=3),
        "pathological": lambda: flower.PathologicalPartitioner(5, "label", num_classes_per_partition=2, seed=3),
        "shards": lambda: flower.ShardPartitioner(5, "label", num_shards_per_partition=2, seed=3),
        "linear": lambda: flower.LinearPartitioner(num_partitions=4),
        "sizes": lambda: flower.SizePartitioner([100, 60, 10]),
    }


@pytest.mark.parametrize("name", ["iid", "dirichlet", "pathological", "shards", "linear", "sizes"])
def test_the_partitions_of_a_flower_partitioner_are_our_clients(name):
    make = partitioners()[name]
    assignment = FlowerPartition(make()).assign(LABELS, num_classes=5)
    assert clients_of(assignment) == rows_of(make(), LABELS)


@pytest.mark.parametrize("ids", [[7, 3, 3, 12, 7, 3], ["u7", "u3", "u3", "u12", "u7", "u3"]])
def test_flowers_natural_partition_is_ours(ids):
    from flwr_datasets.partitioner import NaturalIdPartitioner

    labels = np.array([0, 1, 0, 1, 0, 1])
    theirs = FlowerPartition(NaturalIdPartitioner("id"), validation=0).assign(labels, 2, ids=np.array(ids))
    assert clients_of(theirs) == clients_of(Natural(validation=0).assign(labels, 2, ids=np.array(ids)))
    assert sorted(map(len, clients_of(theirs))) == [1, 2, 3]


def test_columns_may_have_the_names_that_the_partitioner_expects():
    from flwr_datasets.partitioner import GroupedNaturalIdPartitioner

    partitioner = GroupedNaturalIdPartitioner("writer", group_size=2, sort_unique_ids=True)
    partition = FlowerPartition(partitioner, validation=0, label="character", id_column="writer")
    assignment = partition.assign(np.array([0, 1, 0, 1]), 2, ids=np.array([4, 2, 1, 3]))
    assert clients_of(assignment) == [[1, 2], [0, 3]]


def test_the_same_object_gives_the_same_assignment_again():
    partition = FlowerPartition(partitioners()["dirichlet"]())
    assert partition.assign(LABELS, 5).digest() == partition.assign(LABELS, 5).digest()


def test_validation_and_held_out_are_as_in_our_partitions():
    partition = FlowerPartition(partitioners()["iid"](), validation=0.2, held_out=2)  # 29 or 28 samples each
    assignment = partition.assign(LABELS, num_classes=5)
    kept = [int(assignment.validation[rows].sum()) for rows in clients_of(assignment)]
    assert kept == [6, 6, 6, 6, 6, 0, 0]
    other = FlowerPartition(partitioners()["iid"](), validation=0.2, held_out=2, seed=1).assign(LABELS, 5)
    assert clients_of(other) == clients_of(assignment)
    assert (other.validation != assignment.validation).any()


def test_a_federation_is_made_with_a_flower_partition():
    x = np.zeros((200, 3), np.float32)
    federation = Federation.from_arrays(x, LABELS, partition=FlowerPartition(partitioners()["linear"]()))
    assert len(federation) == 4
    sizes = [len(federation.train_indices(k)) + len(federation.validation_indices(k)) for k in range(4)]
    assert sizes == [20, 40, 60, 80]  # in proportion to 1, 2, 3, 4


def repeated():
    """A partitioner that gives every row to both of its partitions."""
    from flwr_datasets.partitioner import Partitioner

    class Repeated(Partitioner):
        num_partitions = 2

        def load_partition(self, partition_id):
            return self.dataset

    return Repeated()


def empty():
    from flwr_datasets.partitioner import Partitioner

    class Empty(Partitioner):
        num_partitions = 3

        def load_partition(self, partition_id):
            return self.dataset.select(range(10) if partition_id != 1 else [])

    return Empty()


def vertical():
    from flwr_datasets.partitioner import VerticalEvenPartitioner

    return VerticalEvenPartitioner(num_partitions=2)


def other_column():
    from flwr_datasets.partitioner import NaturalIdPartitioner

    return NaturalIdPartitioner("writer")


def too_many():
    from flwr_datasets.partitioner import DirichletPartitioner

    return DirichletPartitioner(500, "label", alpha=1.0)


def with_data():
    from datasets import Dataset

    partitioner = partitioners()["iid"]()
    partitioner.dataset = Dataset.from_dict({"label": [1]})
    return partitioner


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (repeated, "Repeated: a sample is in two partitions"),
        (empty, "Empty: partition 1 is empty"),
        (vertical, "VerticalEvenPartitioner: it does not split the data by rows"),
        (other_column, "NaturalIdPartitioner: .*writer"),
        (too_many, "DirichletPartitioner: .*number of partitions"),
        (with_data, "IidPartitioner: it already has data"),
        (lambda: Iid(clients=3), "of type Iid; one of flwr_datasets was expected"),
    ],
)
def test_a_partitioner_that_gives_no_clients_is_refused_by_name(make, words):
    with pytest.raises(InputError, match=words):
        FlowerPartition(make()).assign(LABELS, num_classes=5)


def test_the_fields_are_checked_as_in_our_partitions():
    with pytest.raises(InputError, match=r"partition\.validation is 1"):
        FlowerPartition(None, validation=1)
    with pytest.raises(InputError, match=r"partition\.held_out is 7 of 7 clients"):
        FlowerPartition(partitioners()["iid"](), held_out=7).assign(LABELS, 5)


@pytest.fixture
def federation():
    x = np.arange(200, dtype=np.float32)[:, None]
    return Federation.from_arrays(x, LABELS, partition=Dirichlet(alpha=0.3, clients=6, validation=0.2, held_out=1))


@pytest.fixture
def federated(tmp_path, monkeypatch):
    """The real FederatedDataset of a folder of Parquet files, without a word to the network."""
    from datasets import Dataset
    from flwr_datasets import FederatedDataset

    monkeypatch.setattr("flwr_datasets.federated_dataset.event", lambda *facts: None)
    columns = {"label": LABELS, "value": np.arange(200)}
    (tmp_path / "data").mkdir()
    Dataset.from_dict(columns).to_parquet(tmp_path / "data" / "train.parquet")
    Dataset.from_dict({"label": [4, 2], "value": [-1, -2]}).to_parquet(tmp_path / "data" / "test.parquet")

    def make(partitioner, **options):
        folder, cache = str(tmp_path / "data"), str(tmp_path / "hf-cache")
        return FederatedDataset(dataset=folder, partitioners={"train": partitioner}, cache_dir=cache, **options)

    return make


def test_a_federated_dataset_gives_out_our_clients(federation, federated):
    theirs = federated(as_flower_partitioner(federation), shuffle=False)
    for k in range(6):
        ours = np.sort([*federation.train_indices(k), *federation.validation_indices(k)])
        partition = theirs.load_partition(k)
        assert partition["value"][:] == ours.tolist()
        assert partition["label"][:] == LABELS[ours].tolist()
    assert theirs.partitioners["train"].num_partitions == 6
    assert theirs.load_split("test")["value"][:] == [-1, -2]


@pytest.mark.parametrize("part", ["train", "validation"])
def test_a_part_of_each_client_may_be_chosen(federation, federated, part):
    theirs = federated(as_flower_partitioner(federation, part=part), shuffle=False)
    indices = federation.train_indices if part == "train" else federation.validation_indices
    assert [theirs.load_partition(k)["value"][:] for k in range(6)] == [indices(k).tolist() for k in range(6)]


def test_an_assignment_will_do_and_unassigned_samples_are_in_no_partition(federated):
    assignment = Iid(clients=3, validation=0.1).assign(LABELS, 5)  # 66 each: 2 are left over
    theirs = federated(as_flower_partitioner(assignment), shuffle=False)
    assert [theirs.load_partition(k)["value"][:] for k in range(3)] == clients_of(assignment)
    assert sum(map(len, clients_of(assignment))) == 198


@pytest.mark.parametrize("kind", ["federation", "assignment"])
def test_shuffled_data_are_refused(federation, federated, kind):
    source = federation if kind == "federation" else federation.assignment
    with pytest.raises(InputError, match="shuffle=False"):
        federated(as_flower_partitioner(source)).load_partition(0)  # FederatedDataset shuffles unless told not to


def test_classes_may_be_names_in_the_data(federation):
    from datasets import Dataset

    partitioner = as_flower_partitioner(federation, label="kind")
    partitioner.dataset = Dataset.from_dict({"kind": [f"class {y}" for y in LABELS]})
    assert len(partitioner.load_partition(0)) == 33


def test_there_and_back_again_is_the_same_partition():
    """Six of our clients as Flower's partitions, as our clients once more."""
    first = Dirichlet(alpha=0.3, clients=6, validation=0.2).assign(LABELS, 5)
    again = FlowerPartition(as_flower_partitioner(first)).assign(LABELS, 5)
    np.testing.assert_array_equal(first.client, again.client)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"label": LABELS[:100]}, "the data have 100 rows, but 200 samples were partitioned"),
        ({"character": LABELS}, "the data have no column 'label'"),
        ({"label": LABELS[::-1]}, "not in the order"),
    ],
)
def test_other_data_than_were_partitioned_are_refused(federation, columns, words):
    from datasets import Dataset

    partitioner = as_flower_partitioner(federation)
    partitioner.dataset = Dataset.from_dict(columns)
    with pytest.raises(InputError, match=words):
        partitioner.load_partition(0)


@pytest.mark.parametrize("partition_id", [-1, 2])
def test_a_partition_that_there_is_not_is_refused(partition_id):
    from datasets import Dataset

    assignment = Assignment(np.array([0, 1], np.int32), np.zeros(2, bool), clients=2)
    partitioner = as_flower_partitioner(assignment)
    partitioner.dataset = Dataset.from_dict({"label": [0, 1]})
    with pytest.raises(InputError, match=f"no partition {partition_id}"):
        partitioner.load_partition(partition_id)


def test_an_unknown_part_is_refused(federation):
    with pytest.raises(InputError, match="part is 'test'; one of all, train, validation"):
        as_flower_partitioner(federation, part="test")


def test_without_the_extra_the_errors_say_how_to_install_it(federation, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    monkeypatch.delitem(sys.modules, "flwr_datasets.partitioner", raising=False)
    with pytest.raises(InputError, match=r"needs the extra hf: pip install 'fedrecall\[hf\]'"):
        as_flower_partitioner(federation)
    with pytest.raises(InputError, match=r"needs the extra hf: pip install 'fedrecall\[hf\]'"):
        FlowerPartition(None).assign(LABELS, 5)
