"""Clients' states on a cluster: in the run's folder if a node can access it, else sent along with the tasks.

Either way, committed states are in the run's folder, so none is lost with a node.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from fedrecall.core.vector import Tensors
from fedrecall.runs.client_states import States
from fedrecall.storage.atomic_files import delete_file, explain_write_errors


class FolderToken:
    """A file in a folder, by which a process on a node checks whether it sees the same folder."""

    def __init__(self, folder: Path) -> None:
        self.path, self.word = folder / f".seen-{secrets.token_hex(8)}", secrets.token_hex(16)

    def leave(self) -> None:
        """Write the file, and delete those that killed processes have left."""
        with explain_write_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for left in self.path.parent.glob(".seen-*"):
                delete_file(left, left.parent)
            self.path.write_text(self.word, encoding="ascii")

    def is_seen(self) -> bool:
        try:
            return self.path.read_text(encoding="ascii") == self.word
        except (OSError, ValueError):
            return False

    def remove(self) -> None:
        delete_file(self.path, self.path.parent)
        with contextlib.suppress(OSError):  # the folder may hold states
            self.path.parent.rmdir()


class TravellingStates(States):
    """The states that a worker received with its tasks, and new ones to be sent back with the results."""

    def __init__(self) -> None:
        self.given: dict[tuple[int, int], Tensors] = {}
        self.new: dict[tuple[int, int], Tensors] = {}

    def get(self, client: int, version: int) -> Tensors:
        return {name: tensor.clone() for name, tensor in self.given[client, version].items()}

    def put(self, client: int, round: int, state: Tensors) -> int:
        if not state:
            return 0
        self.new[client, round] = {name: tensor.clone() for name, tensor in state.items()}
        return round
