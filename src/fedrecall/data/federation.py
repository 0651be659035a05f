"""A federation: who has which samples, and the data that everyone is tested on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrecall.data.own_partition import PARTITION
from fedrecall.data.partition import Assignment, Natural, Partition, describe_partition, label_counts
from fedrecall.data.samples import Samples, as_array, checked
from fedrecall.data.sources import DataSet
from fedrecall.data.sources.own_files import split_off
from fedrecall.data.torch_datasets import read_dataset
from fedrecall.data.transform import Images, Plain, channels_last, normalised
from fedrecall.display import facts_table
from fedrecall.errors import InputError
from fedrecall.labels import Labels
from fedrecall.scratch import ScratchFolder

Arrays = tuple[Any, Any]
MOST_CLASSES = 100_000  # more, inferred from the largest label, is a mistake rather than a data set
EVERYONE = -1  # stands for the clients that may train, as one client
Transform = Images | Plain
# A partition, or what a recipe names one by; or a function that says the client of each sample (docs/data.md).
AnyPartition = Partition | type[Partition] | str | Mapping[str, Any] | Callable[..., Any]


Files = tuple[Path, Path]  # of samples and of labels


@dataclass(frozen=True)
class Handle:
    """A federation on its way to another process: who has what, and the files with the samples, which stay where
    they are and belong to the one that wrote them."""

    train: Files
    test: Files | None
    assignment: Assignment
    num_classes: int
    transform: Transform
    class_names: tuple[str, ...]

    def open(self) -> Federation:
        test = None if self.test is None else Samples(*self.test)
        rest = (self.assignment, self.num_classes, self.transform, self.class_names)
        return Federation(Samples(*self.train), test, *rest)


class Federation:
    """Samples, labels, and an assignment of the training samples to clients.

    >>> from fedrecall import Iid
    >>> x, y = np.zeros((40, 3), np.float32), np.arange(40) % 4
    >>> federation = Federation.from_arrays(x, y, test=(x, y), partition=Iid(clients=4, validation=0.2))
    >>> len(federation), len(federation.train_indices(0)), len(federation.validation_indices(0))
    (4, 8, 2)
    """

    knows_labels = True  # False: samples and labels stay with the clients, and here is only how many they have

    def __init__(
        self,
        train: Samples,
        test: Samples | None,
        assignment: Assignment,
        num_classes: int,
        transform: Transform,
        class_names: Sequence[str] = (),
        folder: ScratchFolder | None = None,
        partition: Mapping[str, Any] | None = None,
    ) -> None:
        self.train, self.test = train, test
        self.assignment = assignment
        self.num_classes = num_classes
        self.transform = transform
        self.class_names = tuple(class_names) or tuple(str(c) for c in range(num_classes))
        self._pools: dict[str, tuple[Samples, np.ndarray]] = {}
        self._folder = folder  # removed with the federation
        self.data: Callable[[], DataSet] | None = None  # reads the samples again, on whatever machine it is called
        self.partition = dict(partition or {})  # its name and settings, where they are known
        # Sorted by (client, validation): client k's training samples, then its validation samples.
        key = assignment.client.astype(np.int64) * 2 + assignment.validation
        self._order = np.argsort(key, kind="stable")
        self._starts = np.searchsorted(key[self._order], np.arange(2 * assignment.clients + 1))

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        *,
        test: Arrays | None = None,
        test_fraction: float | None = None,
        test_seed: int = 0,
        partition: AnyPartition,
        num_classes: int | None = None,
        ids: Any = None,
        transform: Transform | None = None,
        layout: str = "auto",
        class_names: Sequence[str] = (),
    ) -> Federation:
        """Split one data set over clients. `ids` names the client of each sample for `Natural`.

        The partition is one of the classes, or a name with options or without, as in a recipe: "iid",
        {"name": "iid", "clients": 10}, "module:name"; or a function of your own (docs/data.md). Without `test`,
        `test_fraction` of the samples is drawn for the test by `test_seed`, before the partition.

        Images are uint8: (N, H, W), (N, H, W, C) or (N, C, H, W); where that is ambiguous, `layout` says "nhwc"
        or "nchw". They are normalised by the mean and deviation of the training images unless `transform` says
        otherwise. Everything else is handed to the model as it is: floats as float32, integers as int64.
        """
        partition = PARTITION.from_python(partition)
        x, y = checked(x, y, num_classes, "training")
        ids = None if ids is None else as_array(ids, "client ids")
        if test_fraction is not None:
            if test is not None:
                raise InputError("test and test_fraction are both given; they exclude each other")
            kept, drawn = split_off(len(y), test_fraction, test_seed, key="test_fraction")
            if ids is not None and len(ids) == len(y):  # else the partition says what is wrong
                ids = ids[kept]
            x, y, test = x[kept], y[kept], (x[drawn], y[drawn])
        tested = checked(*test, num_classes, "test") if test is not None else None
        if len(y) > 1 and y.min() == y.max():
            raise InputError(f"the training labels have one class only, {int(y[0])}; at least two were expected")
        if num_classes is None:
            num_classes = 1 + max(int(labels.max()) for labels in (y, *(tested or ())[1:]))
            if num_classes > MOST_CLASSES:
                raise InputError(f"a label is {num_classes - 1}; say num_classes if there are that many classes")
        if tested is not None and (tested[0].shape[1:], tested[0].dtype) != (x.shape[1:], x.dtype):
            raise InputError(
                f"a training sample is {x.dtype} of shape {x.shape[1:]}, "
                f"but a test sample {tested[0].dtype} of shape {tested[0].shape[1:]}"
            )
        images = x.dtype == np.uint8 and x.ndim in (3, 4) and not isinstance(transform, Plain)
        if images:
            x, *rest = (channels_last(part, layout) for part in (x, *(tested or ())[:1]))
            tested = (rest[0], tested[1]) if tested is not None else None
        if transform is None:
            transform = normalised(x) if images else Plain()
        assignment = partition.assign(np.asarray(y), num_classes, ids)
        folder = ScratchFolder("data")
        train, test_samples = Samples.write(folder.path, "train", x, y), None
        if tested is not None:
            test_samples = Samples.write(folder.path, "test", *tested)
        settings = describe_partition(partition)
        return cls(train, test_samples, assignment, num_classes, transform, class_names, folder, settings)

    @classmethod
    def from_clients(
        cls,
        clients: Sequence[Arrays],
        *,
        test: Arrays | None = None,
        num_classes: int | None = None,
        validation: float = 0.1,
        seed: int = 0,
        held_out: int = 0,
        **options: Any,
    ) -> Federation:
        """Data that is already split: one (samples, labels) pair per client. The options are those of
        `from_arrays`."""
        if not clients:
            raise InputError("there are no clients; a list of (samples, labels) pairs was expected")
        pairs = [checked(x, y, num_classes, f"client {k}") for k, (x, y) in enumerate(clients)]
        shapes = {x.shape[1:]: k for k, (x, _) in reversed(list(enumerate(pairs)))}
        if len(shapes) > 1:
            found = ", ".join(f"{shape} at client {k}" for shape, k in sorted(shapes.items(), key=lambda s: s[1]))
            raise InputError(f"the clients' samples differ in shape: {found}")
        x, y = (np.concatenate(parts) for parts in zip(*pairs))
        ids = np.repeat(np.arange(len(pairs)), [len(labels) for _, labels in pairs])
        partition = Natural(validation=validation, seed=seed, held_out=held_out)
        made = cls.from_arrays(x, y, test=test, partition=partition, num_classes=num_classes, ids=ids, **options)
        if len(made) < len(pairs):  # else clients would have other numbers than in the list
            raise InputError(
                f"test_fraction is {options['test_fraction']}, which leaves {len(pairs) - len(made)} of "
                f"{len(pairs)} clients without samples; a smaller share was expected, or a test set of its own"
            )
        return made

    @classmethod
    def from_datasets(cls, train: Any, test: Any = None, *, partition: AnyPartition, **options: Any) -> Federation:
        """Torch's map-style `Dataset`s of (sample, label). The options are those of `from_arrays`.

        Every item is read once, here: what a transform of the data set draws at random is drawn once. Samples are
        tensors, arrays or PIL images of one shape; images become uint8, grey or red, green and blue.
        """

        x, y, pictures = read_dataset(train, "training")
        tested = None
        if test is not None:
            x_test, y_test, more_pictures = read_dataset(test, "test")
            tested = x_test, y_test
            pictures |= more_pictures
        if pictures:
            options.setdefault("layout", "nhwc")
        return cls.from_arrays(x, y, test=tested, partition=partition, **options)

    @classmethod
    def from_data(cls, data: DataSet, partition: Partition) -> Federation:
        """One of the shipped data sets, by its reader."""
        return cls.from_arrays(
            data.x_train,
            data.y_train,
            test=(data.x_test, data.y_test),
            partition=partition,
            num_classes=data.num_classes,
            ids=data.ids,
            transform=data.transform,
            layout="nhwc",
            class_names=data.class_names,
        )

    def handle(self) -> Handle:
        """How it travels to another process or node."""
        train, test = self.train.files, None if self.test is None else self.test.files
        return Handle(train, test, self.assignment, self.num_classes, self.transform, self.class_names)

    def split_as(self, assignment: Assignment) -> Federation:
        """The same samples, held by other clients."""
        rest = assignment, self.num_classes, self.transform, self.class_names, self._folder
        return Federation(self.train, self.test, *rest)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy goes the same way, whoever makes it."""
        return Handle.open, (self.handle(),)

    def digest(self) -> str:
        """SHA-256 of the samples, the labels, and how they become a model's input; whoever has them."""
        digest = hashlib.sha256(repr((self.num_classes, self.transform)).encode())
        for part in (self.train, self.test):
            if part is not None:
                part.add_to(digest)
        return digest.hexdigest()[:16]

    def temporary_folders(self) -> list[Path]:
        """Folders that go when this federation does."""
        return [self._folder.path] if self._folder else []

    def close(self) -> None:
        """Remove these folders now; whoever has the samples mapped keeps them."""
        if self._folder:
            self._folder.remove()

    def __len__(self) -> int:
        return self.assignment.clients

    def facts(self) -> dict[str, str]:
        """What there is, in words."""
        validation, held_out = int(self.assignment.validation.sum()), self.assignment.held_out
        samples = int((self.assignment.client >= 0).sum())
        shape = " x ".join(map(str, self.sample_shape)) or "one number"
        return {
            "clients": f"{len(self)}, {held_out} of them held out" if held_out else f"{len(self)}",
            "samples": f"{samples} at the clients, {validation} of them for validation",
            "test samples": str(len(self.test)) if self.test is not None else "none",
            "classes": str(self.num_classes),
            "a sample": f"{self.train.x.dtype}, {shape}",
        }

    def __repr__(self) -> str:
        return f"Federation({'; '.join(f'{key}: {value}' for key, value in self.facts().items())})"

    def _repr_html_(self) -> str:
        return facts_table("Federation", self.facts())

    @property
    def population(self) -> int:
        """How many clients may train: all but the held-out ones, which have the last ids."""
        return self.assignment.clients - self.assignment.held_out

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample as the model sees it."""
        shape = self.train.x.shape[1:]
        return (shape[2], shape[0], shape[1]) if isinstance(self.transform, Images) else tuple(shape)

    @property
    def augments(self) -> bool:
        """Does training look at a sample in more than one way?"""
        return isinstance(self.transform, Images) and self.transform.is_random

    def _part(self, slot: int) -> np.ndarray:
        return self._order[self._starts[slot] : self._starts[slot + 1]]

    def train_indices(self, client: int) -> np.ndarray:
        """Where client k's training samples are, in ascending order."""
        return self._part(2 * self._known(client))

    def train_size(self, client: int) -> int:
        """How many training samples client k has."""
        return int(self._starts[2 * client + 1] - self._starts[2 * client])

    def train_sizes(self, clients: np.ndarray) -> np.ndarray:
        """How many training samples each of these clients has."""
        sizes: np.ndarray = self._starts[2 * clients + 1] - self._starts[2 * clients]
        return sizes

    def train_rows(self, clients: np.ndarray, samples: int) -> np.ndarray:
        """[clients, samples]: where the training samples of clients are that have so many."""
        rows: np.ndarray = self._order[self._starts[2 * clients][:, None] + np.arange(samples)]
        return rows

    def trained_on(self, client: int) -> np.ndarray:
        """The training samples of a task: a client's, or those of everyone together."""
        return self.pool("train")[1] if client == EVERYONE else self.train_indices(client)

    def validation_indices(self, client: int) -> np.ndarray:
        return self._part(2 * self._known(client) + 1)

    def _known(self, client: int) -> int:
        if not 0 <= client < len(self):
            raise InputError(f"there is no client {client}; clients from 0 to {len(self) - 1} were expected")
        return client

    def labels(self, client: int, *, with_validation: bool = False, with_pooled: bool = False) -> Labels:
        """Counts and shares of the classes among the client's training samples, or among all that it has; if asked
        for, also the shares among everyone's training samples."""
        counts = np.bincount(self.train.y[self.labelled(client, with_validation)], minlength=self.num_classes)
        return Labels.of(torch.from_numpy(counts), self.pooled_shares if with_pooled else None)

    @cached_property
    def pooled_shares(self) -> torch.Tensor:
        """[C] float64: the share of each class in the training labels of all training clients together."""
        labels = self.train.y[self.pool("train")[1]]
        return torch.from_numpy(np.bincount(labels, minlength=self.num_classes) / len(labels))

    def labelled(self, client: int, with_validation: bool) -> np.ndarray:
        """The samples whose labels a loss knows of a client, or of everyone together."""
        if not with_validation:
            return self.trained_on(client)
        if client == EVERYONE:
            return np.concatenate([self.pool(split)[1] for split in ("train", "validation")])
        return np.concatenate([self.train_indices(client), self.validation_indices(client)])

    def beta(self, client: int) -> torch.Tensor:
        """The share of each class in the client's training labels."""
        return self.labels(client).beta

    def training_counts(self) -> np.ndarray:
        """[clients, classes]: the training samples of each class at each client."""
        chosen = np.where(self.assignment.validation, -1, self.assignment.client)
        return label_counts(chosen, self.train.y, len(self), self.num_classes)

    def pool(self, split: str, clients: Sequence[int] = ()) -> tuple[Samples, np.ndarray]:
        """The pooled samples that a split names, as a source and positions in it.

        "train" and "validation": of all training clients, client after client; "held_out": everything of the
        held-out clients; "test": the test set. Of "validation", only of `clients` if any are named.
        """
        if clients:
            assert split == "validation"
            return self.train, np.concatenate([self.validation_indices(client) for client in clients])
        if split not in self._pools:
            self._pools[split] = self._gather_pool(split)
        return self._pools[split]

    def _gather_pool(self, split: str) -> tuple[Samples, np.ndarray]:
        if split == "test" and self.test is not None:
            return self.test, np.arange(len(self.test))
        if split == "train":
            parts = [self.train_indices(k) for k in range(self.population)]
        elif split == "validation":
            parts = [self.validation_indices(k) for k in range(self.population)]
        elif split == "held_out":
            parts = [self.train_indices(k) for k in range(self.population, len(self))]
        else:
            raise InputError(f"this federation has no {split!r} data")
        return self.train, np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def owners(self) -> np.ndarray:
        """The client of each sample of the pooled validation data."""
        _, positions = self.pool("validation")
        owners: np.ndarray = self.assignment.client[positions]
        return owners
