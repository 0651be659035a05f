"""A federation on its way to another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedrecall.data.assignment import Assignment
from fedrecall.data.transform import Transform

FilePair = tuple[Path, Path]  # of samples and of labels


@dataclass(frozen=True)
class Handle:
    """All of a federation but its samples, which stay in files that the process that wrote them owns."""

    train: FilePair
    test: FilePair | None
    assignment: Assignment
    num_classes: int
    transform: Transform
    class_names: tuple[str, ...]
    client_names: tuple[str, ...] = ()

    @property
    def files(self) -> list[Path]:
        return [*self.train, *(self.test or ())]

    def moved(self, copies: Mapping[Path, Path]) -> Handle:
        """Return the same handle with copies of its files."""

        def copied(files: FilePair) -> FilePair:
            return copies[files[0]], copies[files[1]]

        return replace(self, train=copied(self.train), test=copied(self.test) if self.test else None)
