"""The names of clients, where their ids say more than a number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedrecall.data.assignment import Assignment


def names_of_clients(
    assignment: Assignment, ids: np.ndarray | None, id_names: Sequence[str] | np.ndarray
) -> tuple[str, ...]:
    """Return the name of each client, whose samples all have the same id; empty if the names are 0, 1, ..

    `id_names` are the names of the ids 0, 1, ..; without them the ids are the names.

    >>> names_of_clients(Assignment(np.array([1, 0, 0, -1]), np.zeros(4, bool), 2), np.array([7, 3, 3, 9]), ())
    ('3', '7')
    """
    if ids is None:
        return ()
    first = np.empty(assignment.clients, np.int64)
    assigned = np.flatnonzero(assignment.client >= 0)[::-1]
    first[assignment.client[assigned]] = assigned
    own = ids[first].tolist()
    names = tuple(well_formed(str(id_names[i]) if len(id_names) else str(i)) for i in own)
    return () if names == tuple(map(str, range(len(names)))) else names


def well_formed(name: str) -> str:
    """Return the name with `?` for halves of characters, which no file can hold."""
    return name.encode("utf-8", "replace").decode()
