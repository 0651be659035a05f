"""A federation as its server knows it: the number of samples of each client, but not the samples."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fedrecall.data.assignment import Assignment
from fedrecall.data.federation import Federation
from fedrecall.data.samples import Samples
from fedrecall.errors import InputError
from fedrecall.flower.nodes import NodeFacts
from fedrecall.flower.samples import SampleKind
from fedrecall.storage.scratch import ScratchFolder


class RemoteFederation(Federation):
    """Holds the nodes' sizes, one blank sample to build models with, and the server's test set if there is one."""

    knows_labels = False

    def __init__(
        self,
        kind: SampleKind,
        facts: Sequence[NodeFacts],
        test: tuple[np.ndarray, np.ndarray] | None,
        partition: Mapping[str, Any],
    ) -> None:
        folder = ScratchFolder("server")
        blank = np.zeros((1, *kind.shape), kind.dtype), np.zeros(1, np.int64)
        train = Samples.write(folder.path, "blank", *blank)
        tested = None if test is None else Samples.write(folder.path, "test", *test)
        sizes = np.array([(fact.train, fact.validation) for fact in facts])
        owner = np.repeat(np.arange(len(facts), dtype=np.int32), sizes.sum(1))
        validation = np.repeat(np.tile([False, True], len(facts)), sizes.ravel())
        assignment = Assignment(owner, validation, len(facts))
        rest = kind.num_classes, kind.transform, kind.class_names, folder, partition
        super().__init__(train, tested, assignment, *rest)
        self._facts, self._kind = list(facts), kind

    @cached_property
    def pooled_shares(self) -> torch.Tensor:
        """The class shares over all clients; an `InputError` if a node does not share its class counts."""
        total = np.sum(self._counts(), axis=0)
        return torch.from_numpy(total / total.sum())

    def class_counts(self, client: int) -> torch.Tensor:
        return torch.from_numpy(self._counts()[client])

    def _counts(self) -> np.ndarray:
        """Return the class counts of all clients; raise an `InputError` if a node does not share its own."""
        counts = [fact.counts for fact in self._facts]
        refusing = [client for client, known in enumerate(counts) if known is None]
        if refusing:
            raise InputError(
                "the recipe asks how many samples of each class a client has, but share-class-counts is not true "
                f"at clients {', '.join(map(str, refusing[:20]))}"
            )
        return np.array(counts)

    def digest(self) -> str:
        """Return a digest of what the server knows of the data."""
        digest = hashlib.sha256(repr((self._kind, [(f.train, f.validation) for f in self._facts])).encode())
        if self.test is not None:
            self.test.add_to(digest)
        return digest.hexdigest()[:16]
