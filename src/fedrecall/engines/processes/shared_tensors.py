"""Named tensors in a memory-mapped file: how vectors go from one process of a run to another.

Nothing is pickled and nothing goes through a pipe but the header, which says where each tensor lies.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedrecall.atomic_files import explain_write_errors
from fedrecall.vector import ALIGNMENT, Tensors


@dataclass(frozen=True)
class Header:
    """Where the tensors of one `put` lie."""

    box: str
    file: str  # of the box, as large as it is now
    places: tuple[tuple[str, torch.dtype, tuple[int, ...], int], ...]  # name, dtype, shape, offset


class Box:
    """Holds the tensors of the last `put`. One process puts, others take."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._generation = 0
        self._memory: mmap.mmap | None = None

    def put(self, tensors: Mapping[str, Tensor | list[Tensor]]) -> Header:
        """Each as it is; a list of tensors as their stack."""
        places, end = [], 0
        for name, given in tensors.items():
            first, leading = (given, ()) if isinstance(given, Tensor) else (given[0], (len(given),))
            shape = (*leading, *first.shape)
            places.append((name, first.dtype, shape, end))
            end += -(-math.prod(shape) * first.element_size() // ALIGNMENT) * ALIGNMENT
        memory = self._at_least(end)
        for name, dtype, shape, offset in places:
            given, there = tensors[name], view(memory, dtype, shape, offset)
            if isinstance(given, Tensor):
                there.copy_(given)
            else:
                torch.stack(given, out=there)
        return Header(self.name, self._path().name, tuple(places))

    def _path(self) -> Path:
        return self.folder / f"{self.name}-{self._generation}"

    def _at_least(self, size: int) -> mmap.mmap:
        """The mapping; a larger one is a new file, because a mapped file cannot grow everywhere."""
        if self._memory is None or len(self._memory) < size:
            self._memory = None  # which ends the mapping
            delete(self._path())
            self._generation += 1
            with explain_write_errors(self._path()), self._path().open("wb") as file:
                file.truncate(max(size, mmap.PAGESIZE))
                if hasattr(os, "posix_fallocate"):  # else a full disk ends the process when the map is written
                    os.posix_fallocate(file.fileno(), 0, max(size, mmap.PAGESIZE))
            self._memory = mapped(self._path())
        return self._memory


class Boxes:
    """Takes what others have put into a folder's boxes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._memories: dict[str, tuple[str, mmap.mmap]] = {}  # the file and its mapping, by box

    def take(self, header: Header) -> Tensors:
        """The tensors, in the shared memory itself: copy what must outlive the next `put`."""
        file, memory = self._memories.get(header.box, ("", None))
        if memory is None or file != header.file:
            memory = mapped(self.folder / header.file)
            self._memories[header.box] = header.file, memory  # the mapping before it ends with its last tensor
        return {name: view(memory, dtype, shape, offset) for name, dtype, shape, offset in header.places}

    def drop(self, box: str) -> None:
        """Delete a box that nobody will put into again; tensors that were taken from it stay good."""
        self._memories.pop(box, None)
        for file in self.folder.glob(f"{box}-*"):
            delete(file)


def delete(path: Path) -> None:
    with contextlib.suppress(OSError):  # Windows keeps a file while it is mapped: it goes with the folder
        path.unlink(missing_ok=True)


def mapped(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def view(memory: mmap.mmap, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> Tensor:
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)
