"""How the classes of a federation share clients: which pairs of classes some client can tell apart.

A loss that leaves out a client's absent classes learns to tell two classes apart only from clients that have both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The limits behind `too_little`. docs/when-wsm-hurts.md has the measurements that they are taken from.
CLASSES_EACH = 2.5  # clients with this many random classes each share enough
LEAST_SHARE = 1 / 20  # a pair that this share of the clients contrasts is never too rare
MOST_UNSHARED = 1 / 2  # of the pairs of classes


@dataclass(frozen=True)
class ClassSharing:
    """How classes share clients, counting only classes that some client trains on.

    parts: the number of connected parts of the graph whose nodes are classes and whose edges are pairs of classes
    that some client has both of. clients_per_pair: the effective number of clients that have both classes, a mean
    over all pairs. unshared_pairs: the share of pairs that no client has both of.
    """

    classes: int
    parts: int
    clients_per_pair: float
    unshared_pairs: float

    @classmethod
    def of(cls, counts: NDArray[np.integer[Any]]) -> ClassSharing:
        """Return it for the training samples by client and class.

        The effective number of a pair (a, b) is (sum_k w_k)^2 / sum_k w_k^2, where w_k = min(n_ka, n_kb) is what
        client k has to tell them apart: the number of clients if all of them have equally much.

        >>> ClassSharing.of(np.array([[5, 5, 0], [0, 7, 7], [0, 2, 2]]))  # pairs 01, 02, 12: 1, 0 and 81/53 clients
        ClassSharing(classes=3, parts=1, clients_per_pair=0.8427672955974842, unshared_pairs=0.3333333333333333)
        """
        counts = counts[:, counts.sum(axis=0) > 0].astype(np.float64)
        classes = counts.shape[1]
        effective = np.zeros((classes, classes))
        for a in range(classes - 1):
            both = np.minimum(counts[:, a, None], counts[:, a + 1 :])[counts[:, a] > 0]
            squares = (both**2).sum(axis=0)
            effective[a, a + 1 :] = both.sum(axis=0) ** 2 / np.where(squares > 0, squares, 1)
        pairs = effective[np.triu_indices(classes, 1)]
        if not len(pairs):
            return cls(classes, classes, 0.0, 0.0)
        parts = connected_parts(effective + effective.T > 0)
        mean = math.fsum(pairs.tolist()) / len(pairs)  # the same on every machine
        return cls(classes, parts, mean, int((pairs == 0).sum()) / len(pairs))

    @classmethod
    def from_card(cls, card: Mapping[str, Any]) -> ClassSharing | None:
        """Return what a partition's card says; None for cards without it."""
        found = card.get("class_sharing") or {}
        known = {name: found[name] for name in cls.__dataclass_fields__ if found.get(name) is not None}
        return cls(**known) if len(known) == len(cls.__dataclass_fields__) else None

    def tree(self) -> dict[str, int | float]:
        """Return it for the card."""
        return asdict(self)

    def too_little(self, clients: int) -> str:
        """Return why WSM without smoothing suffers with these clients, as the middle of a sentence; "" if not."""
        if self.classes < 2:
            return ""
        if self.clients_per_pair == 0:
            return "no client has two classes"
        if self.parts > 1:
            return f"the classes fall into {self.parts} groups without a client that has classes of two of them"
        if self.unshared_pairs > MOST_UNSHARED:
            return f"{self.unshared_pairs:.0%}".replace("%", " %") + " of the pairs of classes have no client in common"
        random = CLASSES_EACH * (CLASSES_EACH - 1) / (self.classes * (self.classes - 1))
        if self.clients_per_pair < clients * min(random, LEAST_SHARE):
            return f"two classes have effectively {self.clients_per_pair:.1f} of {clients} clients in common"
        return ""


def connected_parts(edges: NDArray[np.bool_]) -> int:
    """Return the number of connected parts of a graph, given its symmetric matrix of edges."""
    unseen, parts = set(range(len(edges))), 0
    while unseen:
        parts += 1
        reached = [unseen.pop()]
        while reached:
            near = set(np.flatnonzero(edges[reached.pop()]).tolist()) & unseen
            unseen -= near
            reached += near
    return parts
