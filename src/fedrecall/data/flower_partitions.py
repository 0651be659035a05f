"""Adapters between our partitions and the partitioners of `flwr-datasets`. Needs the extra `hf`."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from fedrecall.data.assignment import Assignment
from fedrecall.data.federation import Federation
from fedrecall.data.partition import HeldOut, Ids, Partition, Seed, Validation
from fedrecall.data.partition_draws import Ints
from fedrecall.data.sources.huggingface import needed
from fedrecall.data.sources.huggingface_columns import column
from fedrecall.errors import InputError

ROW = "fedrecall_row"
PARTS = ("all", "train", "validation")


@dataclass(frozen=True)
class FlowerPartition(Partition):
    """The partition made by a partitioner of `flwr_datasets`: its partition k is client k.

    The partitioner sees the labels in a column `label` and the client ids, if the data have them, in a column
    `id_column`: `FlowerPartition(NaturalIdPartitioner(partition_by="id"))`. It draws with its own seed; `seed` is
    for the choice of the validation samples. A copy of it is used, so that `assign` always returns the same.
    """

    partitioner: Any
    validation: Validation = 0.1
    seed: Seed = 0
    held_out: HeldOut = 0
    label: str = "label"
    id_column: str = "id"

    def deal(self, rng: Generator, labels: Ints, num_classes: int, ids: Ids) -> tuple[Ints, Ints]:
        parts = self._rows(labels, ids)
        name = type(self.partitioner).__name__
        sizes = np.array([len(rows) for rows in parts])
        if not sizes.all():
            raise InputError(f"{name}: partition {sizes.argmin()} is empty, but every client needs a sample")
        samples = np.concatenate(parts)
        if len(np.unique(samples)) < len(samples):
            raise InputError(f"{name}: a sample is in two partitions, but it can have one client only")
        return samples, sizes

    def _rows(self, labels: Ints, ids: Ids) -> list[Ints]:
        name = type(self.partitioner).__name__
        if not isinstance(self.partitioner, needed("flwr_datasets.partitioner", "FlowerPartition").Partitioner):
            raise InputError(f"the partitioner is of type {name}; one of flwr_datasets was expected")
        if self.partitioner.is_dataset_assigned():
            raise InputError(f"{name}: it already has data; a partitioner that has none was expected")
        columns = {self.label: labels, ROW: np.arange(len(labels))}
        if ids is not None:
            columns[self.id_column] = ids
        partitioner = copy.deepcopy(self.partitioner)
        partitioner.dataset = needed("datasets", "FlowerPartition").Dataset.from_dict(columns)
        try:
            parts = [partitioner.load_partition(k) for k in range(partitioner.num_partitions)]
        except (ValueError, KeyError, TypeError) as error:  # raised by partitioners that refuse the data
            raise InputError(f"{name}: {' '.join(str(error).split())}") from error
        if not parts or any(ROW not in part.column_names for part in parts):
            raise InputError(f"{name}: it does not split the data by rows, so its partitions are not clients")
        return [column(part, ROW) for part in parts]


def as_flower_partitioner(source: Federation | Assignment, part: str = "all", label: str = "label") -> Any:
    """Return a partitioner of `flwr_datasets` whose partition k has the samples of client k, in their order.

    For `FederatedDataset(dataset=.., shuffle=False, partitioners={"train": as_flower_partitioner(federation)})`.
    The rows must be the training samples in the order that was partitioned, hence `shuffle=False`. This is
    checked: for a federation by the classes in the column `label`; for an assignment, which has no classes, by the
    number of rows, and shuffled or selected rows are refused (`flatten_indices()` turns them into new data).

    part: "all" | "train" | "validation" of the client's samples. Held-out clients are the last partitions, with
    all their samples in "train"; samples without a client are in no partition.
    """
    if part not in PARTS:
        raise InputError(f"part is {part!r}; one of {', '.join(PARTS)} was expected")
    assignment, labels = (source, None) if isinstance(source, Assignment) else (source.assignment, source.train.y)
    chosen = np.ones(len(assignment.client), np.bool_)
    if part != "all":
        chosen = assignment.validation == (part == "validation")
    owner = np.where(chosen, assignment.client, -1)
    base = needed("flwr_datasets.partitioner", "as_flower_partitioner").Partitioner

    class FedrecallPartitioner(base):  # type: ignore[misc, valid-type]
        """The clients of a fedrecall partition."""

        num_partitions = assignment.clients
        _checked = False

        def load_partition(self, partition_id: int) -> Any:
            if not self._checked:
                check_rows(self.dataset, len(owner), labels, label)
                self._checked = True
            if not 0 <= partition_id < assignment.clients:
                raise InputError(f"there is no partition {partition_id}; there are {assignment.clients}, from 0")
            return self.dataset.select(np.flatnonzero(owner == partition_id))

    return FedrecallPartitioner()


def check_rows(dataset: Any, count: int, labels: np.ndarray | None, label: str) -> None:
    """Raise an `InputError` if the data are visibly not those that were partitioned, or not in their order."""
    if len(dataset) != count:
        raise InputError(f"the data have {len(dataset)} rows, but {count} samples were partitioned")
    if labels is None:
        shuffled = getattr(dataset, "_indices", None) is not None
    elif label not in dataset.column_names:
        raise InputError(f"the data have no column {label!r}; say with label= which has the classes")
    else:
        # Classes may be names there and numbers here; both are numbered in sorted order.
        ours, theirs = (np.unique(y, return_inverse=True)[1] for y in (labels, column(dataset, label)))
        shuffled = not np.array_equal(ours, theirs)
    if shuffled:
        raise InputError(
            "the data are not in the order in which they were partitioned; "
            "make the FederatedDataset with shuffle=False, of the training data alone"
        )
