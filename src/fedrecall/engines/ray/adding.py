"""The sum over a round's clients where they trained: who trains what, and who adds up which node of the tree.

Nothing here knows Ray: what lies on the cluster is a reference, which is handed on as it is.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedrecall.client.partial_sums import PartialSum
from fedrecall.client.sums import LEAF, Sums, node_size
from fedrecall.client.tasks import TrainTask
from fedrecall.client.update import Update
from fedrecall.engines.parcels import Parcel, Rest, unstacked
from fedrecall.engines.ray.worker import Added
from fedrecall.vector import Tensors

Place = tuple[int, int]  # of a node in the tree: its level and its number there


class Rows(NamedTuple):
    """Results whose vectors lie on the cluster: a part of a leaf."""

    tasks: list[TrainTask]
    rest: Rest
    vectors: Any


class Node(NamedTuple):
    """A node of the sum, whose vectors lie on the cluster."""

    added: Added
    vectors: Any


@dataclass
class Adding(Parcel):
    """A node to be added up, of parts that are there: some rows, or nodes of the level below."""

    node: Place = (0, 0)
    parts: list[Any] = field(default_factory=list)


class LostError(Exception):
    """What lay on the cluster went with its node."""


class Additions:
    """One round's training, as work for a pool of workers (`pool.Work`)."""

    def __init__(
        self, tasks: list[TrainTask], size: int, fetch: Callable[[Any], Tensors], *, looked_at: bool
    ) -> None:
        self.tasks, self._fetch, self.looked_at = tasks, fetch, looked_at
        self._size = next(size_ for size_ in (16, 8, 4, 2, 1) if size_ <= max(1, size))  # none straddles leaves
        self._top = 0
        while self._count(self._top) > LEAF:  # so that few are left for the driver
            self._top += 1
        self._waiting: list[tuple[int, list[TrainTask]]] = []
        self._adding: list[Place] = []
        self._rows: dict[int, Rows] = {}  # by the place of their first task
        self._nodes: dict[Place, Node] = {}
        self._results: dict[int, Update] = {}  # without vectors, by place
        self._leaves: dict[int, Added] = {}
        self._given = 0  # nodes of the top level that were given back
        last = LEAF * (3 * len(tasks) // (4 * LEAF))  # smaller parcels at the end, so that few workers idle there
        self._ask_for(0, last, self._size)
        self._ask_for(last, len(tasks), max(1, self._size // 4))

    def _count(self, level: int) -> int:
        """Nodes on a level."""
        return math.ceil(len(self.tasks) / node_size(level))

    def _covers(self, node: Place) -> range:
        """The places of the clients in a node."""
        size = node_size(node[0])
        return range(node[1] * size, min((node[1] + 1) * size, len(self.tasks)))

    def _ask_for(self, start: int, stop: int, size: int) -> None:
        for first in range(start, stop, size):
            heapq.heappush(self._waiting, (first, self.tasks[first : min(first + size, stop)]))

    def over(self) -> bool:
        return self._given == self._count(self._top)

    def waiting(self) -> int:
        return len(self._adding) + len(self._waiting)

    def next(self, worker: int) -> Parcel | None:
        """Sums first: they free what lies on the cluster."""
        while self._adding:
            node = self._adding.pop()
            parts = self._parts(node)
            if parts is not None:  # else some of them are being made again
                return Adding([], [], worker, node=node, parts=parts)
        if not self._waiting:
            return None
        first, tasks = heapq.heappop(self._waiting)
        return Parcel(list(range(first, first + len(tasks))), list(tasks), worker)

    def is_leaf(self, parcel: Parcel) -> bool:
        """Is it all of a leaf, to be added up by whoever trains it?"""
        return parcel.places == list(self._covers((0, parcel.places[0] // LEAF)))

    def done(self, parcel: Parcel, results: Any) -> None:
        """`results`: what is no vector of each result, the sum if it is one, and where the vectors lie."""
        rest, added, vectors = results
        if isinstance(parcel, Adding):
            self._put(parcel.node, Node(added, vectors))
            return
        tasks = [task for task in parcel.tasks if isinstance(task, TrainTask)]
        for place, result in zip(parcel.places, unstacked(list(tasks), (rest[0], {}), {})):
            assert isinstance(result, Update)
            self._results[place] = result
        leaf = 0, parcel.places[0] // LEAF
        if added is not None:
            self._put(leaf, Node(added, vectors))
            return
        self._rows[parcel.places[0]] = Rows(tasks, rest, vectors)
        if self._parts(leaf) is not None:
            self._adding.append(leaf)

    def _put(self, node: Place, made: Node) -> None:
        self._nodes[node] = made
        for place in self._below(node):
            self._nodes.pop(place, None)
        if node[0] == 0:
            self._leaves[node[1]] = made.added
            for first in self._covers(node):
                self._rows.pop(first, None)
        above = node[0] + 1, node[1] // LEAF
        if node[0] < self._top and self._parts(above) is not None:
            self._adding.append(above)

    def _below(self, node: Place) -> list[Place]:
        """The parts of a node on the level below it."""
        level, number = node
        last = min((number + 1) * LEAF, self._count(level - 1)) if level else 0
        return [(level - 1, part) for part in range(number * LEAF, last)]

    def _parts(self, node: Place) -> list[Any] | None:
        """Of what a node is added up; None if not all of it is there."""
        if node[0]:
            parts = [self._nodes.get(place) for place in self._below(node)]
            return None if None in parts else parts
        rows = [self._rows[first] for first in self._covers(node) if first in self._rows]
        complete = sum(len(part.tasks) for part in rows) == len(self._covers(node))
        return list(rows) if complete else None

    def lost(self, parcel: Parcel) -> None:
        """Its worker is gone: tasks are run again one by one, a sum is added up again by another."""
        if isinstance(parcel, Adding):
            self._adding.append(parcel.node)
        else:
            self._ask_for(parcel.places[0], parcel.places[-1] + 1, 1)

    def parts_lost(self, node: Place) -> None:
        """Some of a node went with the machine that it lay on: all of it is made again."""
        covered = self._covers(node)
        for place in covered:
            self._rows.pop(place, None)
        for level in range(node[0] + 1):
            for number in range(covered[0] // node_size(level), covered[-1] // node_size(level) + 1):
                self._nodes.pop((level, number), None)
        self._ask_for(covered[0], covered[-1] + 1, self._size)

    def ready(self) -> Iterator[PartialSum]:
        """The nodes of the top level whose turn it is."""
        while not self.over() and (self._top, self._given) in self._nodes:
            place = self._top, self._given
            node = self._nodes[place]
            try:
                vectors = self._fetch(node.vectors)
            except LostError:
                self.parts_lost(place)
                return
            del self._nodes[place]
            self._given += 1
            yield self._summed(place, node, vectors)

    def _summed(self, place: Place, node: Node, vectors: Tensors) -> PartialSum:
        covered = self._covers(place)
        leaves = [self._leaves.pop(leaf) for leaf in range(covered[0] // LEAF, covered[-1] // LEAF + 1)]
        out = {order for leaf in leaves for order in leaf.dropped}
        results = [self._results.pop(at) for at in covered]
        accepted = [result for result in results if result.task.order not in out]
        dropped = [result for result in results if result.task.order in out]
        sums = Sums.of(vectors, node.added.scalars)
        return PartialSum(*place, sums, accepted, dropped, sum(leaf.wire_bytes for leaf in leaves))
