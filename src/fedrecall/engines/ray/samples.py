"""A node's access to the samples of a run.

A node uses the driver's files if it can see them, else its own data set if that has the same digest, else a copy
that it fetches once over the network from the driver's node. All are memory-mapped, so that workers share memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall.data.federation import Federation
from fedrecall.data.handle import Handle
from fedrecall.data.partition import Iid
from fedrecall.data.sources import DataSet
from fedrecall.engines.ray.cluster import Cluster
from fedrecall.storage.atomic_files import explain_write_errors
from fedrecall.storage.scratch import ScratchFolder

PIECE = 2**26  # bytes per message

Seen = tuple[int, int, int]  # identity of a file: inode, size and modification time


def seen(path: Path) -> Seen | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class SampleSource:
    """Description of the samples that a node receives."""

    handle: Handle  # names the driver's files
    files: dict[Path, Seen | None]
    digest: str
    data: Callable[[], DataSet] | None  # reads the data set again, if it was read from one

    @classmethod
    def of(cls, federation: Federation) -> SampleSource:
        handle = federation.handle()
        files = {path: seen(path) for path in handle.files}
        return cls(handle, files, federation.digest(), federation.data)

    def open(self) -> Federation | None:
        """Return the federation from files or data that this node has; None if it lacks the samples."""
        if all(there is not None and seen(path) == there for path, there in self.files.items()):
            return Federation.from_handle(self.handle)
        return self._read_again()

    def _read_again(self) -> Federation | None:
        """Return the federation from a data set below this node's FEDRECALL_DATA or in the package, else None."""
        if self.data is None:
            return None
        with contextlib.suppress(Exception):  # whatever fails, the node lacks the samples
            own = Federation.from_data(self.data(), Iid(clients=1))
            if own.digest() == self.digest:
                return own.split_as(self.handle.assignment)
        return None


class SamplePieces:
    """An actor on the driver's node that reads the files for other nodes."""

    def read(self, path: Path, start: int) -> np.ndarray:
        with path.open("rb") as file:
            file.seek(start)
            return np.frombuffer(file.read(PIECE), np.uint8)


class SampleDepot:
    """An actor on a node without the samples, which fetches them and stores them until it is closed."""

    def fetch(self, source: SampleSource, pieces: Any) -> Handle:
        """Copy the files to this node; return the federation's handle with the copies."""
        import ray

        self._folder = ScratchFolder("samples")
        here: dict[Path, Path] = {}
        for number, path in enumerate(source.handle.files):
            here[path] = self._folder.path / f"{number}.npy"
            facts = source.files[path]
            assert facts is not None
            with explain_write_errors(here[path]), here[path].open("wb") as file:
                for start in range(0, facts[1], PIECE):
                    file.write(ray.get(pieces.read.remote(path, start)))
        return source.handle.moved(here)

    def close(self) -> None:
        self._folder.remove()


class SampleSupply:
    """The driver's side: supplies samples to the nodes that lack them, once per node."""

    def __init__(self, cluster: Cluster, source: SampleSource) -> None:
        self._cluster, self._source = cluster, source
        self._pieces: Any = None
        self._depots: dict[str, tuple[Any, Any]] = {}  # by node: the actor and the reference to its handle

    def of_node(self, node: str) -> Any:
        """Return the reference to the federation's handle with files of this node."""
        if node not in self._depots:
            self._pieces = self._pieces or self._cluster.actor_on(SamplePieces, self._cluster.own_node())
            depot = self._cluster.actor_on(SampleDepot, node)
            self._depots[node] = depot, depot.fetch.remote(self._source, self._pieces)
        return self._depots[node][1]

    def forget(self, node: str) -> None:
        """Forget a node's copy, which may be lost, so that it is fetched again."""
        self._depots.pop(node, None)

    def close(self) -> list[Any]:
        """Remove the samples from the nodes; return the references to wait for."""
        return [depot.close.remote() for depot, _ in self._depots.values()]
