"""Where the clients' states are between rounds: at the nodes; the server knows their versions alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedrecall.runs.client_states import StateFiles, lost
from fedrecall.vector import Tensors


class OwnStates(StateFiles):
    """A node's: after a round it keeps the state that it started from and the new one.

    The server may drop the reply, or come back from a checkpoint of the round before: the message that follows
    names the older one again then.
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
    """The server's, which has none of them."""

    def get(self, client: int, version: int) -> Tensors:
        raise lost(client, version, self.path(client, version))

    def check(self, versions: Mapping[int, int]) -> None:
        """A node that lacks the version says so when it is asked to start from it."""

    def flush(self, versions: Mapping[int, int]) -> None: ...

    def delete(self, client: int, version: int) -> None: ...

    def delete_others(self, tables: Sequence[Mapping[int, int]]) -> None: ...
