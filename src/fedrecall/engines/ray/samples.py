"""How a node comes to the samples: where it sees the driver's files, by these; else from the data set that it has
itself, if that has the same digest; else piece by piece from the driver's node, once.

Only the last sends samples over the network. All are mapped, so that the workers of a node share the memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall.atomic_files import explain_write_errors
from fedrecall.data.federation import Federation
from fedrecall.data.handle import Handle
from fedrecall.data.partition import Iid
from fedrecall.data.sources import DataSet
from fedrecall.engines.ray.cluster import Cluster
from fedrecall.scratch import ScratchFolder

PIECE = 2**26  # bytes that are sent at once

Seen = tuple[int, int, int]  # what tells a file from others: its number, size and time


def seen(path: Path) -> Seen | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class SampleSource:
    """What a node is told of the samples."""

    handle: Handle  # with the files as the driver sees them
    files: dict[Path, Seen | None]
    digest: str
    data: Callable[[], DataSet] | None  # reads the data set again, if it was read from one

    @classmethod
    def of(cls, federation: Federation) -> SampleSource:
        handle = federation.handle()
        files = {path: seen(path) for path in handle.files}
        return cls(handle, files, federation.digest(), federation.data)

    def open(self) -> Federation | None:
        """The federation by what this node has; None if it has not the samples."""
        if all(there is not None and seen(path) == there for path, there in self.files.items()):
            return Federation.from_handle(self.handle)
        return self._read_again()

    def _read_again(self) -> Federation | None:
        """From a data set below this node's FEDRECALL_DATA, or inside of the package."""
        if self.data is None:
            return None
        with contextlib.suppress(Exception):  # whatever is wrong with it, the samples are not here
            own = Federation.from_data(self.data(), Iid(clients=1))
            if own.digest() == self.digest:
                return own.split_as(self.handle.assignment)
        return None


class Pieces:
    """An actor on the driver's node, which reads the files for others."""

    def read(self, path: Path, start: int) -> np.ndarray:
        with path.open("rb") as file:
            file.seek(start)
            return np.frombuffer(file.read(PIECE), np.uint8)


class Depot:
    """An actor on a node that has not the samples: it fetches them, and keeps them while it lives."""

    def fetch(self, source: SampleSource, pieces: Any) -> Handle:
        """The federation with files of this node."""
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


class Supplies:
    """The driver's side: the nodes that have to be sent the samples, each of which fetches them once."""

    def __init__(self, cluster: Cluster, source: SampleSource) -> None:
        self._cluster, self._source = cluster, source
        self._pieces: Any = None
        self._depots: dict[str, tuple[Any, Any]] = {}  # by node: the actor, and the handle that it will give

    def of_node(self, node: str) -> Any:
        """The reference to the federation's handle with files of this node."""
        if node not in self._depots:
            self._pieces = self._pieces or self._cluster.actor_on(Pieces, self._cluster.own_node())
            depot = self._cluster.actor_on(Depot, node)
            self._depots[node] = depot, depot.fetch.remote(self._source, self._pieces)
        return self._depots[node][1]

    def forget(self, node: str) -> None:
        """What was sent there is lost."""
        self._depots.pop(node, None)

    def close(self) -> list[Any]:
        """Remove the samples from the nodes; what to wait for."""
        return [depot.close.remote() for depot, _ in self._depots.values()]
