"""Named tensors in a memory-mapped file that the processes of one machine share.

Tensors are not pickled or sent through a pipe: a message holds only their location, a `SharedTensors`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedrecall.core.vector import Tensors
from fedrecall.engines.tensor_layout import TensorLayout, plan_layout, tensor_views, write_tensors
from fedrecall.storage.atomic_files import explain_write_errors


@dataclass(frozen=True)
class SharedTensors:
    """The location of the tensors of one `write`."""

    writer: str
    file: str  # the writer's current file: a larger one has another name
    layout: TensorLayout


class SharedTensorWriter:
    """Shares the tensors of its last `write` with the readers of the same folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._generation = 0
        self._memory: mmap.mmap | None = None

    def write(self, tensors: Mapping[str, Tensor | list[Tensor]]) -> SharedTensors:
        """Replace the previously written tensors by these; a list of tensors is written as its stack."""
        layout, size = plan_layout(tensors)
        write_tensors(self._memory_of(size), tensors, layout)
        return SharedTensors(self.name, self._path().name, layout)

    def _path(self) -> Path:
        return self.folder / f"{self.name}-{self._generation}"

    def _memory_of(self, size: int) -> mmap.mmap:
        """Return a mapping of at least `size` bytes, growing by a new file: not every system can enlarge one."""
        if self._memory is None or len(self._memory) < size:
            self._memory = None  # unmaps the old file
            delete_mapped(self._path())
            self._generation += 1
            with explain_write_errors(self._path()), self._path().open("wb") as file:
                file.truncate(max(size, mmap.PAGESIZE))
                if hasattr(os, "posix_fallocate"):  # else writing to the map on a full disk kills the process
                    os.posix_fallocate(file.fileno(), 0, max(size, mmap.PAGESIZE))
            self._memory = map_file(self._path())
        return self._memory


class SharedTensorReader:
    """Reads the tensors that the writers of a folder share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._memories: dict[str, tuple[str, mmap.mmap]] = {}  # the file and its mapping, by writer

    def read(self, shared: SharedTensors) -> Tensors:
        """Return views into the shared memory, valid until the writer's next `write`."""
        file, memory = self._memories.get(shared.writer, ("", None))
        if memory is None or file != shared.file:
            memory = map_file(self.folder / shared.file)
            self._memories[shared.writer] = shared.file, memory  # the old file is unmapped with its last view
        return tensor_views(memory, shared.layout)

    def drop(self, writer: str) -> None:
        """Delete the files of a dead writer; tensors that were read from them stay valid."""
        self._memories.pop(writer, None)
        for file in self.folder.glob(f"{writer}-*"):
            delete_mapped(file)


def delete_mapped(path: Path) -> None:
    with contextlib.suppress(OSError):  # Windows cannot delete a mapped file: it is deleted with the folder
        path.unlink(missing_ok=True)


def map_file(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)
