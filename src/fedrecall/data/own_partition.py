"""Partitions by a user's function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator

from fedrecall.config.components import PlainFunction, Section
from fedrecall.data.partition import PARTITIONS, HeldOut, Ids, Partition, Seed, Validation
from fedrecall.data.partition_draws import Ints
from fedrecall.data.split_file import SplitFile
from fedrecall.errors import InputError, short_repr


@dataclass(frozen=True)
class SplitFunction(PlainFunction, Partition):
    """A partition by a function that returns the client of each sample, from 0, or -1 for no client.

    It is called with the labels, the number of classes, a generator seeded by this partition, and its options.

    >>> def halves(labels, num_classes, rng):
    ...     return (labels >= num_classes // 2).astype(int)
    >>> SplitFunction(halves, validation=0.0).assign(np.array([3, 0, 1, 2]), num_classes=4).client.tolist()
    [1, 0, 0, 1]
    """

    arguments: ClassVar[tuple[str, ...]] = ("labels", "num_classes", "rng")

    validation: Validation = 0.1
    seed: Seed = 0
    held_out: HeldOut = 0

    def deal(self, rng: Generator, labels: Ints, num_classes: int, ids: Ids) -> tuple[Ints, Ints]:
        # A copy, because a function that sorts the labels in place must not change the data.
        client = self._checked(self.function(labels.copy(), num_classes, rng, **self.options), len(labels))
        sizes = np.bincount(client[client >= 0])
        if not sizes.all():
            raise InputError(
                f"{self._title}: client {sizes.argmin()} of {len(sizes)} has no samples; clients from 0 on, each "
                "with at least one, were expected"
            )
        samples = np.argsort(client, kind="stable")
        return samples[len(client) - sizes.sum() :], sizes

    def _checked(self, returned: Any, samples: int) -> Ints:
        client = np.asarray(returned)
        if client.shape != (samples,) or client.dtype.kind not in "iu":
            raise InputError(
                f"{self._title} returned {short_repr(returned)}; an array with a client's number for each of "
                f"{samples} samples was expected"
            )
        if client.min() < -1 or client.max() < 0 or client.max() >= samples:
            raise InputError(
                f"{self._title} returned numbers from {client.min()} to {client.max()}; clients from 0 on were "
                "expected, and -1 for samples that nobody gets"
            )
        return client.astype(np.int64)

    @property
    def _title(self) -> str:
        return f"partition {self.name!r}"


NAMED: dict[str, type[Partition]] = {**PARTITIONS, "split_file": SplitFile}
PARTITION: Section[Partition] = Section(
    "partition", NAMED, Partition, supplied=frozenset({"folder"}), adapter=SplitFunction
)
