"""Named tensors in a memory-mapped file, which the processes of one machine share.

Nothing is pickled and nothing goes through a pipe but the header, which says where each tensor lies.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedrecall.atomic_files import explain_write_errors
from fedrecall.engines.layout import Places, fill, lay_out, views
from fedrecall.vector import Tensors


@dataclass(frozen=True)
class Header:
    """Where the tensors of one `put` lie."""

    box: str
    file: str  # of the box, as large as it is now
    places: Places


class Box:
    """Holds the tensors of the last `put`. One process puts, others take."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._generation = 0
        self._memory: mmap.mmap | None = None

    def put(self, tensors: Mapping[str, Tensor | list[Tensor]]) -> Header:
        """Each as it is; a list of tensors as their stack."""
        places, size = lay_out(tensors)
        fill(self._at_least(size), tensors, places)
        return Header(self.name, self._path().name, places)

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
        return views(memory, header.places)

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
