"""Partitions: rules that assign each training sample to one client, as training or as validation data.

A partition is a small frozen dataclass such as `Dirichlet(alpha=0.1, clients=100)`. Its `assign` returns an
`Assignment` that depends only on the partition's fields, the labels and the ids.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

from fedrecall.config.options import LARGEST_WHOLE
from fedrecall.data.assignment import Assignment
from fedrecall.data.partition_draws import Ints, dirichlet_shares, draw_classes, samples_of
from fedrecall.errors import InputError

Ids = NDArray[Any] | None

# The options of several partitions, with the meanings that `fedrecall recipes show --defaults` prints.
Alpha = Annotated[float, "concentration: the smaller, the fewer classes a client has"]
Clients = Annotated[int, "number of clients, the held-out ones included"]
Validation = Annotated[float, "the share of each client's samples that is kept for validation"]
Seed = Annotated[int, "of the partition alone, apart from the run's seed"]
HeldOut = Annotated[int, "that many last clients never train and are evaluated apart"]
Split = Annotated[str, "shuffled | draw_order: which of a client's samples are for validation"]

STREAM = 0x70617274  # "part": keeps these draws apart from other uses of an equal seed
MOST_TRIES = 1000


class Partition:
    """The base of all partitions. A new one is a frozen dataclass with these fields, its own, and `deal`."""

    recipe_section: ClassVar[str] = "partition"
    validation: float = 0.1
    seed: int = 0
    held_out: int = 0
    clients: int | None = None  # None: the data decide
    split: str = "shuffled"

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            _check_field(field.name, getattr(self, field.name))
        if self.clients is not None:
            _check_held_out(self.held_out, self.clients)

    def description(self) -> dict[str, Any]:
        """Return what describes it besides its plain settings."""
        return {}

    def deal(self, rng: Generator, labels: Ints, num_classes: int, ids: Ids) -> tuple[Ints, Ints]:
        """Return the samples client by client, each client's in the order drawn, and the size of each client."""
        raise NotImplementedError

    def assign(self, labels: Ints, num_classes: int, ids: Ids = None) -> Assignment:
        """Assign samples to clients and choose each client's validation samples. `ids` is for `Natural`."""
        labels = _checked(labels, num_classes)
        rng = default_rng(SeedSequence([self.seed, STREAM]))
        samples, sizes = self.deal(rng, labels, num_classes, ids)
        _check_held_out(self.held_out, len(sizes))
        owner = np.repeat(np.arange(len(sizes)), sizes)
        if self.split == "shuffled":
            samples = samples[np.lexsort((rng.random(len(samples)), owner))]
        kept = np.minimum(np.rint(sizes * self.validation).astype(np.int64), sizes - 1)
        kept[len(sizes) - self.held_out :] = 0
        place_from_end = np.cumsum(sizes)[owner] - np.arange(len(owner))
        client, validation = np.full(len(labels), -1, np.int32), np.zeros(len(labels), np.bool_)
        client[samples] = owner
        validation[samples] = place_from_end <= kept[owner]
        return Assignment(client, validation, len(sizes), self.held_out)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Clients of equal size, each with class shares q_k ~ Dir(alpha, .., alpha) over the C classes.

    Clients are filled in turn with floor(n / K) draws without replacement; a class that is used up leaves q_k. The
    n - K floor(n / K) left-over samples stay unassigned. `split` is "shuffled" or "draw_order": a client's last
    draws are its validation data, so a class that ran out in between is rare there.

    >>> labels = np.arange(1000) % 10
    >>> assignment = Dirichlet(alpha=0.1, clients=10, validation=0.1, seed=0).assign(labels, num_classes=10)
    >>> np.bincount(assignment.client).tolist() == [100] * 10, int(assignment.validation.sum())
    (True, 100)
    """

    alpha: Alpha = 0.1
    clients: Clients = 100
    validation: Validation = 0.1
    seed: Seed = 0
    held_out: HeldOut = 0
    split: Split = "shuffled"

    def deal(self, rng: Generator, labels: Ints, num_classes: int, ids: Ids) -> tuple[Ints, Ints]:
        _check_enough(len(labels), self.clients)
        sizes = np.full(self.clients, len(labels) // self.clients)
        left = np.bincount(labels, minlength=num_classes)
        drawn = []
        for size, q in zip(sizes, dirichlet_shares(rng, self.alpha, (self.clients, num_classes))):
            drawn.append(draw_classes(rng, q, left, size))
            left -= np.bincount(drawn[-1], minlength=num_classes)
        return samples_of(rng, np.concatenate(drawn), labels), sizes


@dataclass(frozen=True)
class Classwise(Partition):
    """Each class is cut over the clients by a draw from Dir(alpha, .., alpha) over the K clients.

    Sizes differ, as in most libraries. The whole draw is repeated until every client has `min_size` samples.
    """

    alpha: Alpha = 0.1
    clients: Clients = 100
    validation: Validation = 0.1
    seed: Seed = 0
    held_out: HeldOut = 0
    min_size: Annotated[int, "draw again until every client has this many samples"] = 1

    def deal(self, rng: Generator, labels: Ints, num_classes: int, ids: Ids) -> tuple[Ints, Ints]:
        _check_enough(len(labels), self.clients, "min_size", self.min_size)
        counts = self._cut(rng, np.bincount(labels, minlength=num_classes))
        drawn = np.repeat(np.tile(np.arange(num_classes), self.clients), counts.ravel())
        return samples_of(rng, drawn, labels), counts.sum(axis=1)

    def _cut(self, rng: Generator, per_class: Ints) -> Ints:
        """Draw the number of samples of each class at each client, [clients, classes]."""
        for _ in range(MOST_TRIES):
            shares = dirichlet_shares(rng, self.alpha, (len(per_class), self.clients))
            cuts = np.rint(np.cumsum(shares, axis=1) * per_class[:, None]).astype(np.int64)
            cuts[:, -1] = per_class
            counts = np.diff(cuts, axis=1, prepend=0).T
            if counts.sum(axis=1).min() >= self.min_size:
                return counts
        raise InputError(
            f"partition.min_size is {self.min_size} but each of {MOST_TRIES} draws at partition.alpha "
            f"{self.alpha} left one of the {self.clients} clients with less; raise partition.alpha, or lower "
            "partition.clients or partition.min_size, or take partition.name dirichlet (equal sizes)"
        )


@dataclass(frozen=True)
class Iid(Partition):
    """Clients of equal size, drawn at random; the n - K floor(n / K) left-over samples stay unassigned."""

    clients: Clients = 100
    validation: Validation = 0.1
    seed: Seed = 0
    held_out: HeldOut = 0

    def deal(self, rng: Generator, labels: Ints, num_classes: int, ids: Ids) -> tuple[Ints, Ints]:
        _check_enough(len(labels), self.clients)
        sizes = np.full(self.clients, len(labels) // self.clients)
        return rng.permutation(len(labels))[: sizes.sum()], sizes


@dataclass(frozen=True)
class Shards(Partition):
    """Sorted by label, cut into equal shards, and dealt out at random: few classes at each client.

    McMahan et al., AISTATS 2017, arXiv 1602.05629. Left-over samples stay unassigned; they are removed at random
    before sorting, so that they do not all come from the last class.
    """

    clients: Clients = 100
    shards_per_client: Annotated[int, "how many pieces of the sorted data each client gets"] = 2
    validation: Validation = 0.1
    seed: Seed = 0
    held_out: HeldOut = 0

    def deal(self, rng: Generator, labels: Ints, num_classes: int, ids: Ids) -> tuple[Ints, Ints]:
        _check_enough(len(labels), self.clients, "shards_per_client", self.shards_per_client)
        shards = self.clients * self.shards_per_client
        size = len(labels) // shards
        mixed = rng.permutation(len(labels))[: shards * size]
        by_label = mixed[np.argsort(labels[mixed], kind="stable")].reshape(shards, size)
        return by_label[rng.permutation(shards)].ravel(), np.full(self.clients, self.shards_per_client * size)


@dataclass(frozen=True)
class Natural(Partition):
    """One client for each distinct id (a FEMNIST writer, say), in the sorted order of the ids.

    Samples of ids with fewer than `min_samples` stay unassigned. Ids 0 to K - 1 stay the clients' numbers.
    """

    validation: Validation = 0.1
    seed: Seed = 0
    held_out: HeldOut = 0
    min_samples: Annotated[int, "ids with fewer samples are left out"] = 1

    def deal(self, rng: Generator, labels: Ints, num_classes: int, ids: Ids) -> tuple[Ints, Ints]:
        number = _numbered(ids, len(labels))
        found = np.bincount(number)
        kept = found >= self.min_samples
        if not kept.any():
            raise InputError(
                f"partition.min_samples is {self.min_samples} but the largest client has only {found.max()} "
                "training samples; lower partition.min_samples"
            )
        samples = np.argsort(number, kind="stable")
        return samples[kept[number[samples]]], found[kept]


PARTITIONS: dict[str, type[Partition]] = {
    "dirichlet": Dirichlet,
    "classwise": Classwise,
    "iid": Iid,
    "shards": Shards,
    "natural": Natural,
}


def describe_partition(partition: Partition) -> dict[str, Any]:
    """Return the name and settings of a partition as in a recipe."""
    names = {kind: name for name, kind in PARTITIONS.items()}
    plain = {key: value for key, value in vars(partition).items() if isinstance(value, str | int | float | None)}
    return {"name": names.get(type(partition), type(partition).__qualname__), **plain, **partition.description()}


def _numbered(ids: Ids, samples: int) -> Ints:
    """Return each sample's client: the position of its id among the sorted ids."""
    if ids is None:
        raise InputError(
            "partition.name is natural but this data set has no client ids; choose data that has them, "
            "or partition.name dirichlet, classwise, iid or shards"
        )
    if ids.shape != (samples,):
        raise InputError(f"the client ids are of shape {ids.shape}; one for each of {samples} samples is needed")
    if ids.dtype == object and all(isinstance(name, str) for name in ids):
        ids = ids.astype(str)
    if ids.dtype.kind not in "iuU":  # a missing id is often a NaN, which must not become a client
        raise InputError(f"the client ids are of type {ids.dtype}; they must be whole numbers or strings")
    return np.unique(ids, return_inverse=True)[1]


def _check_field(key: str, value: Any) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    whole = number and isinstance(value, Integral)
    if key == "alpha":
        good, expected = number and 0 < value < math.inf, "above 0 and finite"
    elif key == "validation":
        good, expected = number and 0 <= value < 1, "at least 0 and below 1"
    elif key == "split":
        good, expected = value in ("shuffled", "draw_order"), "shuffled or draw_order"
    elif key in ("seed", "held_out"):
        good, expected = whole and 0 <= value <= LARGEST_WHOLE, "a whole number, at least 0 and below 2**63"
    elif key in ("clients", "shards_per_client", "min_size", "min_samples"):
        good, expected = whole and 1 <= value <= LARGEST_WHOLE, "a whole number, at least 1 and below 2**63"
    else:  # another partition's own key
        return
    if not good:
        raise InputError(f"partition.{key} is {value!r}; it must be {expected}")


def _check_held_out(held_out: int, clients: int) -> None:
    if held_out >= clients:
        raise InputError(f"partition.held_out is {held_out} of {clients} clients; at least one must train")


def _checked(labels: Ints, num_classes: int) -> NDArray[np.int64]:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        kind = f"of shape {labels.shape} and type {labels.dtype}"
        raise InputError(f"the labels are {kind}; they must be one whole number per training sample")
    if not len(labels):
        raise InputError("the labels are empty; a partition needs at least one training sample")
    for label in (labels.min(), labels.max()):
        if not 0 <= label < num_classes:
            raise InputError(f"a label is {label} but num_classes is {num_classes}; labels count from 0")
    return labels.astype(np.int64)


def _check_enough(samples: int, clients: int, key: str = "", each: int = 1) -> None:
    if clients * each > samples:
        times = f" with partition.{key} {each}" if each > 1 else ""
        raise InputError(
            f"partition.clients is {clients}{times} but there are only {samples} training samples; "
            f"lower {'one of them' if times else 'it'} or use more data"
        )
