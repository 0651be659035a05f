"""Which client has which training samples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrecall.data.partition_draws import Ints
from fedrecall.errors import InputError
from fedrecall.storage.atomic_files import replace_file


@dataclass(frozen=True, eq=False)
class Assignment:
    """The client of each training sample, and which samples are kept for validation.

    client: int32 per sample, -1 where unassigned. validation: bool per sample.
    clients: the number of clients, held-out ones included. held_out: that many last clients never train.
    """

    client: NDArray[np.int32]
    validation: NDArray[np.bool_]
    clients: int
    held_out: int = 0

    @property
    def population(self) -> int:
        """The number of clients that may train."""
        return self.clients - self.held_out

    def save(self, folder: Path | str, class_counts: Ints | None = None) -> None:
        """Write `partition.npz` into `folder`.

        It includes the number of training samples by client and class if given, because a reader of the folder
        has no labels.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        counts = {} if class_counts is None else {"class_counts": class_counts.astype(np.int32)}
        with replace_file(Path(folder) / "partition.npz") as temporary:
            np.savez_compressed(temporary, client=self.client, validation=self.validation, **counts)  # type: ignore[arg-type]

    def digest(self) -> str:
        """Return a SHA-256 that is the same for equal assignments on every machine."""
        content = self.client.astype("<i4").tobytes() + self.validation.astype(np.uint8).tobytes()
        return hashlib.sha256(content).hexdigest()


class ClientIndex:
    """The positions of each client's samples in the training data, in ascending order."""

    def __init__(self, assignment: Assignment) -> None:
        self._clients, self._population = assignment.clients, assignment.population
        # Sorted by (client, validation): client k's training samples, then its validation samples.
        key = assignment.client.astype(np.int64) * 2 + assignment.validation
        self._order = np.argsort(key, kind="stable")
        self._starts = np.searchsorted(key[self._order], np.arange(2 * assignment.clients + 1))
        self._pools: dict[str, np.ndarray] = {}

    def train(self, client: int) -> np.ndarray:
        return self._part(client, 0)

    def validation(self, client: int) -> np.ndarray:
        return self._part(client, 1)

    def _part(self, client: int, validation: int) -> np.ndarray:
        if not 0 <= client < self._clients:
            raise InputError(f"there is no client {client}; clients from 0 to {self._clients - 1} were expected")
        part = 2 * client + validation
        return self._order[self._starts[part] : self._starts[part + 1]]

    def train_sizes(self, clients: np.ndarray) -> np.ndarray:
        """Return the number of training samples of each of these clients."""
        sizes: np.ndarray = self._starts[2 * clients + 1] - self._starts[2 * clients]
        return sizes

    def train_rows(self, clients: np.ndarray, samples: int) -> np.ndarray:
        """Return the training samples of clients that have `samples` of them each, as [clients, samples]."""
        rows: np.ndarray = self._order[self._starts[2 * clients][:, None] + np.arange(samples)]
        return rows

    def pool(self, split: str) -> np.ndarray:
        """Return the samples of several clients, one client after the other.

        "train" and "validation": of all clients that may train; "held_out": all samples of the held-out clients.
        """
        if split not in self._pools:
            self._pools[split] = np.concatenate([np.zeros(0, np.int64), *self._parts(split)])
        return self._pools[split]

    def _parts(self, split: str) -> Sequence[np.ndarray]:
        if split == "train":
            return [self.train(k) for k in range(self._population)]
        if split == "validation":
            return [self.validation(k) for k in range(self._population)]
        if split == "held_out":
            return [self.train(k) for k in range(self._population, self._clients)]
        raise InputError(f"this federation has no {split!r} data")


def label_counts(client: Ints, labels: Ints, clients: int, num_classes: int) -> NDArray[np.int64]:
    """Count the samples of each class at each client, [clients, classes]; samples of client -1 are left out.

    >>> label_counts(np.array([0, 0, 1, -1]), np.array([2, 2, 0, 1]), clients=2, num_classes=3).tolist()
    [[0, 0, 2], [1, 0, 0]]
    """
    assigned = client >= 0
    cell = client[assigned].astype(np.int64) * num_classes + labels[assigned].astype(np.int64)
    return np.bincount(cell, minlength=clients * num_classes).reshape(clients, num_classes)
