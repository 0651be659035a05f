"""A federation: the samples, the client that has each of them, and the test data of all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrecall.core.labels import Labels
from fedrecall.data.arrays import (
    ArrayPair,
    as_array,
    as_stored,
    checked,
    count_classes,
    draw_test,
    join_clients,
    note_unused_zero,
)
from fedrecall.data.assignment import Assignment, ClientIndex, label_counts
from fedrecall.data.client_names import names_of_clients
from fedrecall.data.handle import Handle
from fedrecall.data.own_partition import PARTITION
from fedrecall.data.partition import Natural, Partition, describe_partition
from fedrecall.data.samples import Samples
from fedrecall.data.sources import DataSet
from fedrecall.data.torch_datasets import names_of_classes, read_dataset
from fedrecall.data.transform import Images, Transform
from fedrecall.display import facts_table
from fedrecall.errors import InputError
from fedrecall.storage.scratch import ScratchFolder

EVERYONE = -1  # stands for all clients that may train, as one client
# A partition, its name or group in a recipe, or a function that returns the client of each sample (docs/data.md).
AnyPartition = Partition | type[Partition] | str | Mapping[str, Any] | Callable[..., Any]


class Federation:
    """Samples, labels, and the client of each training sample.

    >>> from fedrecall import Iid
    >>> x, y = np.zeros((40, 3), np.float32), np.arange(40) % 4
    >>> federation = Federation.from_arrays(x, y, test=(x, y), partition=Iid(clients=4, validation=0.2))
    >>> len(federation), len(federation.train_indices(0)), len(federation.validation_indices(0))
    (4, 8, 2)
    """

    knows_labels = True  # False: samples and labels stay with the clients, and only their number is known here

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
        client_names: Sequence[str] = (),
    ) -> None:
        self.train, self.test = train, test
        self.assignment = assignment
        self.num_classes = num_classes
        self.transform = transform
        self.class_names = tuple(class_names) or tuple(str(c) for c in range(num_classes))
        self.client_names = tuple(client_names)  # empty: clients have numbers only
        self.index = ClientIndex(assignment)
        self.data: Callable[[], DataSet] | None = None  # reads the samples again, on any machine
        self.partition = dict(partition or {})  # its name and settings, where they are known
        self._folder = folder  # removed with the federation

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        *,
        test: ArrayPair | None = None,
        test_fraction: float | None = None,
        test_seed: int = 0,
        partition: AnyPartition,
        num_classes: int | None = None,
        ids: Any = None,
        transform: Transform | None = None,
        layout: str = "auto",
        class_names: Sequence[str] = (),
        id_names: Sequence[str] | np.ndarray = (),
    ) -> Federation:
        """Split one data set over clients. `ids` names the client of each sample for `Natural`; ids that are text
        are the clients' names, and `id_names` are the names of the ids 0, 1, ..

        The partition is an instance of one of the classes, a name with or without options as in a recipe ("iid",
        {"name": "iid", "clients": 10}, "module:name"), or a function of your own (docs/data.md). Without `test`,
        `test_fraction` of the samples is drawn as test data with `test_seed`, before the partition.

        uint8 arrays of shape (N, H, W), (N, H, W, C) or (N, C, H, W) are images; where the shape is ambiguous, set
        `layout` to "nhwc" or "nchw". Images are normalised by the mean and standard deviation of the training
        images unless `transform` is given. All other samples reach the model unchanged, floats as float32 and
        integers as int64.
        """
        partition = PARTITION.from_python(partition)
        x, y = checked(x, y, num_classes, "training")
        ids = None if ids is None else as_array(ids, "client ids")
        if test_fraction is not None:
            if test is not None:
                raise InputError("test and test_fraction are both given; they exclude each other")
            x, y, ids, test = draw_test(x, y, ids, test_fraction, test_seed)
        tested = None if test is None else checked(*test, num_classes, "test")
        if len(y) > 1 and y.min() == y.max():
            raise InputError(f"the training labels have one class only, {int(y[0])}; at least two were expected")
        if num_classes is None:
            num_classes = count_classes(y, tested)
            note_unused_zero(num_classes, "num_classes", y, *(tested or ())[1:])
        x, tested, transform = as_stored(x, tested, transform, layout)
        assignment = partition.assign(np.asarray(y), num_classes, ids)
        folder = ScratchFolder("data")
        train = Samples.write(folder.path, "train", x, y)
        test_samples = None if tested is None else Samples.write(folder.path, "test", *tested)
        names = names_of_clients(assignment, ids, id_names) if isinstance(partition, Natural) else ()
        rest = class_names, folder, describe_partition(partition), names
        return cls(train, test_samples, assignment, num_classes, transform, *rest)

    @classmethod
    def from_clients(
        cls,
        clients: Sequence[ArrayPair] | Mapping[str, ArrayPair],
        *,
        test: ArrayPair | None = None,
        num_classes: int | None = None,
        validation: float = 0.1,
        seed: int = 0,
        held_out: int = 0,
        **options: Any,
    ) -> Federation:
        """Take data that is already split, as one (samples, labels) pair per client.

        A dictionary gives the clients names: {"Basel": (x, y), "Bern": (x, y)}. The options are those of
        `from_arrays`.
        """
        names = tuple(map(str, clients)) if isinstance(clients, Mapping) else ()
        x, y, ids = join_clients(clients, num_classes)
        partition = Natural(validation=validation, seed=seed, held_out=held_out)
        options |= {"ids": ids, "id_names": names}
        made = cls.from_arrays(x, y, test=test, partition=partition, num_classes=num_classes, **options)
        given = int(ids[-1]) + 1
        if len(made) < given:  # the clients' numbers would differ from their places in the list
            raise InputError(
                f"test_fraction is {options['test_fraction']}, which leaves {given - len(made)} of "
                f"{given} clients without samples; a smaller share was expected, or a test set of its own"
            )
        return made

    @classmethod
    def from_datasets(cls, train: Any, test: Any = None, *, partition: AnyPartition, **options: Any) -> Federation:
        """Read torch's map-style `Dataset`s of (sample, label). The options are those of `from_arrays`.

        Every item is read once, so a random transform in the data set is applied once. Samples are tensors, arrays
        or PIL images of one shape; images become uint8, grey or RGB.
        """
        (x, y), pictures = read_dataset(train, "training")
        if names := names_of_classes(train):
            options = {"class_names": names, "num_classes": len(names), **options}
        tested, test_pictures = (None, False) if test is None else read_dataset(test, "test")
        if pictures or test_pictures:
            options.setdefault("layout", "nhwc")
        return cls.from_arrays(x, y, test=tested, partition=partition, **options)

    @classmethod
    def from_data(cls, data: DataSet, partition: Partition) -> Federation:
        """Split a data set as returned by one of the readers in `fedrecall.data.sources`."""
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
            id_names=() if data.id_names is None else data.id_names,
        )

    @classmethod
    def from_handle(cls, handle: Handle) -> Federation:
        """Open the files of a federation that another process has made."""
        test = None if handle.test is None else Samples(*handle.test)
        rest = handle.num_classes, handle.transform, handle.class_names
        names = handle.client_names
        return cls(Samples(*handle.train), test, handle.assignment, *rest, client_names=names)

    def handle(self) -> Handle:
        """Return what another process needs to open this federation with `from_handle`."""
        train, test = self.train.files, None if self.test is None else self.test.files
        rest = self.num_classes, self.transform, self.class_names, self.client_names
        return Handle(train, test, self.assignment, *rest)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the handle, so that a copy maps the same files."""
        return Federation.from_handle, (self.handle(),)

    def split_as(self, assignment: Assignment) -> Federation:
        """Return a federation of the same samples with another assignment."""
        rest = assignment, self.num_classes, self.transform, self.class_names, self._folder
        return Federation(self.train, self.test, *rest)

    def digest(self) -> str:
        """Return a SHA-256 of the samples, the labels and the transform, whatever the assignment."""
        digest = hashlib.sha256(repr((self.num_classes, self.transform)).encode())
        for part in (self.train, self.test):
            if part is not None:
                part.add_to(digest)
        return digest.hexdigest()[:16]

    def temporary_folders(self) -> list[Path]:
        """Return the folders that are removed with this federation."""
        return [self._folder.path] if self._folder else []

    def close(self) -> None:
        """Remove the temporary folders now; processes that have mapped the samples keep them."""
        if self._folder:
            self._folder.remove()

    def __len__(self) -> int:
        return self.assignment.clients

    def facts(self) -> dict[str, str]:
        """Return a description in words."""
        numbered = self.class_names == tuple(str(c) for c in range(self.num_classes))
        names = "" if numbered else f" ({', '.join(self.class_names[:10])}{', ..' * (self.num_classes > 10)})"
        validation, held_out = int(self.assignment.validation.sum()), self.assignment.held_out
        samples = int((self.assignment.client >= 0).sum())
        shape = " x ".join(map(str, self.sample_shape)) or "one number"
        return {
            "clients": f"{len(self)}, {held_out} of them held out" if held_out else f"{len(self)}",
            "samples": f"{samples} at the clients, {validation} of them for validation",
            "test samples": str(len(self.test)) if self.test is not None else "none",
            "classes": f"{self.num_classes}{names}",
            "a sample": f"{self.train.x.dtype}, {shape}",
        }

    def __repr__(self) -> str:
        return f"Federation({'; '.join(f'{key}: {value}' for key, value in self.facts().items())})"

    def _repr_html_(self) -> str:
        return facts_table("Federation", self.facts())

    @property
    def population(self) -> int:
        """The number of clients that may train: all but the held-out ones, which have the last ids."""
        return self.assignment.population

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample as the model receives it."""
        shape = self.train.x.shape[1:]
        return (shape[2], shape[0], shape[1]) if isinstance(self.transform, Images) else tuple(shape)

    def train_indices(self, client: int) -> np.ndarray:
        """Return the positions of a client's training samples, ascending."""
        return self.index.train(client)

    def validation_indices(self, client: int) -> np.ndarray:
        """Return the positions of a client's validation samples, ascending."""
        return self.index.validation(client)

    def indices(self, client: int, *, with_validation: bool = False) -> np.ndarray:
        """Return the positions of a client's training samples, followed by its validation samples if asked for.

        `EVERYONE` stands for all clients that may train.
        """
        if client == EVERYONE:
            train, validation = self.index.pool("train"), self.index.pool("validation")
        else:
            train, validation = self.index.train(client), self.index.validation(client)
        return np.concatenate([train, validation]) if with_validation else train

    def pool(self, split: str, clients: Sequence[int] = ()) -> tuple[Samples, np.ndarray]:
        """Return the pooled samples of a split, as a source and positions in it.

        "train" and "validation": of all training clients, client after client; "held_out": all samples of the
        held-out clients; "test": the test set. `clients` restricts "validation" to these clients.
        """
        if split == "test" and self.test is not None:
            return self.test, np.arange(len(self.test))
        if clients:
            assert split == "validation"
            return self.train, np.concatenate([self.index.validation(client) for client in clients])
        return self.train, self.index.pool(split)

    def owners(self) -> np.ndarray:
        """Return the client of each sample of the pooled validation data."""
        owners: np.ndarray = self.assignment.client[self.index.pool("validation")]
        return owners

    def labels(self, client: int, *, with_validation: bool = False, with_pooled: bool = False) -> Labels:
        """Return the class counts and shares of a client's training samples, or of all its samples.

        `with_pooled` adds the class shares of all training clients together.
        """
        own = self.train.y[self.indices(client, with_validation=with_validation)]
        counts = np.bincount(own, minlength=self.num_classes)
        return Labels.of(torch.from_numpy(counts), self.pooled_shares if with_pooled else None)

    def class_counts(self, client: int) -> torch.Tensor:
        """Return how many training samples of each class a client has."""
        return self.labels(client).counts

    def beta(self, client: int) -> torch.Tensor:
        """Return the share of each class in the client's training labels."""
        return self.labels(client).beta

    @cached_property
    def pooled_shares(self) -> torch.Tensor:
        """[C] float64: the share of each class in the training labels of all training clients together."""
        labels = self.train.y[self.index.pool("train")]
        return torch.from_numpy(np.bincount(labels, minlength=self.num_classes) / len(labels))

    def training_counts(self) -> np.ndarray:
        """Count the training samples of each class at each client, [clients, classes]."""
        chosen = np.where(self.assignment.validation, -1, self.assignment.client)
        return label_counts(chosen, self.train.y, len(self), self.num_classes)
