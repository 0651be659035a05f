"""Clients' states on a cluster: in the run's folder where a node reaches it, else on the way with their tasks.

Either way what is committed lies in the run's folder: a node that dies takes nothing with it.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from fedrecall.atomic_files import delete_file, explain_write_errors
from fedrecall.runs.client_states import States
from fedrecall.vector import Tensors


class FolderToken:
    """A file in a folder, by which another process knows whether it sees the same one."""

    def __init__(self, folder: Path) -> None:
        self.path, self.word = folder / f".seen-{secrets.token_hex(8)}", secrets.token_hex(16)

    def leave(self) -> None:
        """Where nobody else leaves any: those that are there are of processes that were killed."""
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
        with contextlib.suppress(OSError):  # there are states in it
            self.path.parent.rmdir()


class TravellingStates(States):
    """The states that came with a worker's tasks, and those that go back with their results."""

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
