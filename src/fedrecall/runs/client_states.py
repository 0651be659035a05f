"""Client states between rounds: one immutable file per (client, round), and the table of current versions.

Workers write versions (`States`); the round loop decides which are current (`StateTable`), so that a dead worker,
a resumed run or a late reply changes nothing. Only clients that have participated have a file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedrecall.core.vector import Tensors, tensors_digest
from fedrecall.errors import InputError
from fedrecall.storage.atomic_files import delete_file, explain_write_errors, flush, remove_leftovers, write_bytes
from fedrecall.storage.safe_parsing import regular_file


class States(Protocol):
    """The store of client states as workers see it; it may be on another machine."""

    def get(self, client: int, version: int) -> Tensors:
        """Return the client's state as the round `version` wrote it."""

    def put(self, client: int, round: int, state: Tensors) -> int:
        """Store the client's state of this round and return its version; 0 for a state without tensors."""


class StateFiles:
    """Client states as files below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, client: int, version: int) -> Path:
        # At most 1000 clients share a folder: very large directories are slow on some file systems.
        return self.folder / f"{client // 1000:04d}" / f"client-{client:06d}-round-{version:06d}.safetensors"

    def get(self, client: int, version: int) -> Tensors:
        path = self.path(client, version)
        try:
            with safe_open(regular_file(path), framework="pt") as file:
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                noted = (file.metadata() or {}).get("sha256")
            if noted in (None, tensors_digest(state)):
                return state
        except (OSError, ValueError, RuntimeError, SafetensorError):
            pass
        raise lost(client, version, path)

    def put(self, client: int, round: int, state: Tensors) -> int:
        if not state:
            return 0
        path = self.path(client, round)
        copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
        with explain_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        # There are many: `flush` syncs the current ones.
        write_bytes(path, save(copies, {"sha256": tensors_digest(copies)}), flushed=False)
        return round

    def check(self, versions: Mapping[int, int]) -> None:
        """Raise an `InputError` if the file of one of these states is missing or damaged."""
        for client, version in versions.items():
            self.get(client, version)

    def flush(self, versions: Mapping[int, int]) -> None:
        """Sync the files of these states to disk."""
        for client, version in versions.items():
            path = self.path(client, version)
            with explain_write_errors(path):
                flush(path)

    def delete(self, client: int, version: int) -> None:
        delete_file(self.path(client, version), self.folder.parent)

    def remove_leftovers(self) -> None:
        """Delete the partial files of killed workers."""
        for folder in self.folder.glob("*"):
            remove_leftovers(folder, self.folder.parent)

    def delete_others(self, tables: Sequence[Mapping[int, int]]) -> None:
        """Delete all files that are in none of these tables."""
        named = {self.path(client, version) for table in tables for client, version in table.items()}
        for path in self.folder.glob("*/*"):
            if path not in named:
                delete_file(path, self.folder.parent)


class StateTable:
    """The current version of each client's state, and the versions that kept checkpoints need."""

    def __init__(self, files: StateFiles) -> None:
        self.files = files
        self.versions: dict[int, int] = {}
        self._superseded: dict[int, int] = {}  # by the versions of an unfinished round
        self._kept: deque[dict[int, int]] = deque()  # the tables of the kept checkpoints

    def version(self, client: int) -> int:
        """Return the round that wrote the client's current state; 0 if it has none."""
        return self.versions.get(client, 0)

    def flush(self, since: int) -> None:
        """Sync the current states newer than round `since` to disk, before a checkpoint that names them."""
        self.files.flush({client: version for client, version in self.versions.items() if version > since})

    def propose(self, accepted: Mapping[int, int]) -> None:
        """Make these versions (by client) current for the rest of the round, until `settle` or `roll_back`."""
        self._superseded = {client: self.version(client) for client in accepted}
        self.versions.update(accepted)

    def settle(self) -> None:
        """Complete the round: delete superseded versions that no checkpoint needs."""
        for client, version in self._superseded.items():
            self.discard(client, version)
        self._superseded = {}

    def roll_back(self) -> None:
        """Undo a stopped round: make the previous versions current again."""
        self.versions.update(self._superseded)
        self._superseded = {}

    def restore(self, tables: Sequence[Mapping[int, int]]) -> None:
        """Resume from the last of the kept checkpoints' tables; delete files that are in none of them."""
        self._kept = deque(dict(table) for table in tables)
        self.versions = dict(self._kept[-1]) if self._kept else {}
        self.files.delete_others(self._kept)

    def keep(self, checkpoints: int) -> None:
        """Keep the current table for a new checkpoint, and only the tables of the last `checkpoints`."""
        self._kept.append(dict(self.versions))
        while len(self._kept) > checkpoints:
            for client, version in self._kept.popleft().items():
                self.discard(client, version)

    def discard(self, client: int, version: int) -> None:
        """Delete a version unless a table has it."""
        if version and all(table.get(client) != version for table in (self.versions, *self._kept)):
            self.files.delete(client, version)


def lost(client: int, version: int, path: Path) -> InputError:
    return InputError(f"the state of client {client} after round {version} is missing or damaged: {str(path)!r}")
