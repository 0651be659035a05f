"""Clients' states, which stay at the nodes between rounds; the server knows only their versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedrecall.core.vector import Tensors
from fedrecall.runs.client_states import StateFiles, lost


class OwnStates(StateFiles):
    """The states of a node, which keeps the one that it started a round from and the new one.

    If the server drops the reply, or resumes from the checkpoint of the previous round, its next message names the
    older one.
    """

    def __init__(self, folder: Path, starts_from: int) -> None:
        super().__init__(folder)
        self.starts_from = starts_from

    def put(self, client: int, round: int, state: Tensors) -> int:
        version = super().put(client, round, state)
        if version:
            self.flush({client: version})
            self.delete_others([{client: self.starts_from}, {client: version}])
        return version


class StatesElsewhere(StateFiles):
    """The states as the server sees them: it stores none."""

    def get(self, client: int, version: int) -> Tensors:
        raise lost(client, version, self.path(client, version))

    def check(self, versions: Mapping[int, int]) -> None:
        """Do nothing: a node that lacks a version reports that when it is asked to start from it."""

    def flush(self, versions: Mapping[int, int]) -> None: ...

    def delete(self, client: int, version: int) -> None: ...

    def delete_others(self, tables: Sequence[Mapping[int, int]]) -> None: ...
