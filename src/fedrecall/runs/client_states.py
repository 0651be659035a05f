"""The clients' state between rounds: one immutable file per (client, round), and which of them count.

Workers write versions (`States`); the round loop decides which of them are current (`StateTable`). A dead worker,
a resumed run and a late reply then change nothing. Only clients that have taken part have a file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedrecall.atomic_files import delete_file, explain_write_errors, flush, remove_leftovers, replace_file
from fedrecall.errors import InputError
from fedrecall.safe_parsing import regular_file
from fedrecall.vector import Tensors, tensors_digest


class States(Protocol):
    """What a worker asks of the place where states are; it may be far away."""

    def get(self, client: int, version: int) -> Tensors:
        """The client's state as the round `version` wrote it."""

    def put(self, client: int, round: int, state: Tensors) -> int:
        """Keep the client's state of this round and return its version; 0 for a state without tensors."""


class StateFiles:
    """States as files below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, client: int, version: int) -> Path:
        # At most 1000 clients share a folder: directories with very many entries are slow on some file systems.
        return self.folder / f"{client // 1000:04d}" / f"client-{client:06d}-round-{version:06d}.safetensors"

    def get(self, client: int, version: int) -> Tensors:
        path = self.path(client, version)
        try:
            with safe_open(regular_file(path), framework="pt") as file:
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                noted = (file.metadata() or {}).get("sha256")
            if noted not in (None, tensors_digest(state)):
                raise ValueError
        except (OSError, ValueError, RuntimeError, SafetensorError):
            raise lost(client, version, path) from None
        return state

    def put(self, client: int, round: int, state: Tensors) -> int:
        if not state:
            return 0
        path = self.path(client, round)
        kept = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
        with explain_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path, flushed=False) as beside:  # there are many: `flush` waits for those that count
            save_file(kept, beside, {"sha256": tensors_digest(kept)})
        return round

    def check(self, versions: Mapping[int, int]) -> None:
        """Are the files of these states there, with the values that were written?"""
        for client, version in versions.items():
            self.get(client, version)

    def flush(self, versions: Mapping[int, int]) -> None:
        """Wait until these states are on the disk."""
        for client, version in versions.items():
            path = self.path(client, version)
            with explain_write_errors(path):
                flush(path)

    def delete(self, client: int, version: int) -> None:
        delete_file(self.path(client, version), self.folder.parent)

    def remove_leftovers(self) -> None:
        """Delete what workers that were killed had not written to its end."""
        for folder in self.folder.glob("*"):
            remove_leftovers(folder, self.folder.parent)

    def delete_others(self, tables: Sequence[Mapping[int, int]]) -> None:
        """Delete all files that none of these tables names."""
        named = {self.path(client, version) for table in tables for client, version in table.items()}
        for path in self.folder.glob("*/*"):
            if path not in named:
                delete_file(path, self.folder.parent)


class StateTable:
    """Which version of each client's state is current, and which others a kept checkpoint still needs."""

    def __init__(self, files: StateFiles) -> None:
        self.files = files
        self.versions: dict[int, int] = {}
        self._superseded: dict[int, int] = {}  # by the versions of a round that is not done
        self._kept: deque[dict[int, int]] = deque()  # the tables of the kept checkpoints

    def version(self, client: int) -> int:
        """The round that wrote the client's current state; 0 if it has none."""
        return self.versions.get(client, 0)

    def flush(self, since: int) -> None:
        """The current states that are younger than a round on the disk, before a checkpoint that names them."""
        self.files.flush({client: version for client, version in self.versions.items() if version > since})

    def propose(self, accepted: Mapping[int, int]) -> None:
        """Make these versions (by client) current for the rest of the round, which may still be stopped."""
        self._superseded = {client: self.version(client) for client in accepted}
        self.versions.update(accepted)

    def settle(self) -> None:
        """The round is done: what it superseded goes, unless a checkpoint needs it."""
        for client, version in self._superseded.items():
            self.discard(client, version)
        self._superseded = {}

    def commit(self, accepted: Mapping[int, int]) -> None:
        """Both at once."""
        self.propose(accepted)
        self.settle()

    def roll_back(self) -> None:
        """The round was stopped: what was current before it is so again."""
        self.versions.update(self._superseded)
        self._superseded = {}

    def restore(self, tables: Sequence[Mapping[int, int]]) -> None:
        """Go on from the last of these tables of kept checkpoints; files that none of them names are deleted."""
        self._kept = deque(dict(table) for table in tables)
        self.versions = dict(self._kept[-1]) if self._kept else {}
        self.files.delete_others(self._kept)

    def keep(self, checkpoints: int) -> None:
        """The current table belongs to a checkpoint now; the tables of the last `checkpoints` are kept."""
        self._kept.append(dict(self.versions))
        while len(self._kept) > checkpoints:
            for client, version in self._kept.popleft().items():
                self.discard(client, version)

    def discard(self, client: int, version: int) -> None:
        """Delete a version, unless a table names it."""
        named = any(table.get(client) == version for table in (self.versions, *self._kept))
        if version and not named:
            self.files.delete(client, version)


def lost(client: int, version: int, path: Path) -> InputError:
    return InputError(f"the state of client {client} after round {version} is missing or damaged: {str(path)!r}")
