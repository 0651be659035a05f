"""The sum over a round's clients as a tree reduction, whose nodes are added up by the workers of a cluster.

This module does not import Ray: it only passes on references to vectors on the cluster.
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
from fedrecall.core.vector import Tensors
from fedrecall.engines.messages import NodeDone, StoredSum
from fedrecall.engines.task_chunks import ResultScalars, TaskChunk, unstack_results

NodePlace = tuple[int, int]  # a node's level in the tree and its number on that level


class LeafPart(NamedTuple):
    """Results of some clients of a leaf, with the reference to their vectors."""

    tasks: list[TrainTask]
    scalars: ResultScalars
    vectors: Any


class TreeNode(NamedTuple):
    """A node that has been added up, with the reference to its vectors."""

    added: StoredSum
    vectors: Any


@dataclass(kw_only=True)
class NodeReduction(TaskChunk):
    """A node for a worker to add up from its parts, all of which are on the cluster."""

    node: NodePlace
    leaf_parts: list[LeafPart] = field(default_factory=list)  # only for a leaf
    children: list[TreeNode] = field(default_factory=list)  # for any other node


class LostError(Exception):
    """Vectors on the cluster were lost with the node that stored them."""


class TreeReduction:
    """One round's training as work for a pool of workers (`pool.Work`)."""

    def __init__(
        self, tasks: list[TrainTask], size: int, fetch: Callable[[Any], Tensors], *, track_updates: bool
    ) -> None:
        self.tasks, self._fetch, self.track_updates = tasks, fetch, track_updates
        self._size = next(size_ for size_ in (16, 8, 4, 2, 1) if size_ <= max(1, size))  # no chunk spans two leaves
        self._top = 0
        while self._count(self._top) > LEAF:  # so that the driver has few nodes to add up
            self._top += 1
        self._waiting: list[tuple[int, list[TrainTask]]] = []
        self._reducible: list[NodePlace] = []  # nodes whose parts are complete
        self._leaf_parts: dict[int, LeafPart] = {}  # by the place of their first task
        self._nodes: dict[NodePlace, TreeNode] = {}
        self._results: dict[int, Update] = {}  # without vectors, by place
        self._leaves: dict[int, StoredSum] = {}
        self.trained_again = 0  # clients whose updates were lost on the cluster
        self._yielded = 0  # number of top-level nodes yielded so far
        last = LEAF * (3 * len(tasks) // (4 * LEAF))  # smaller chunks at the end, so that few workers idle there
        self._train(0, last, self._size)
        self._train(last, len(tasks), max(1, self._size // 4))

    def _count(self, level: int) -> int:
        """Return the number of nodes on a level."""
        return math.ceil(len(self.tasks) / node_size(level))

    def _covers(self, node: NodePlace) -> range:
        """Return the places of the clients in a node."""
        size = node_size(node[0])
        return range(node[1] * size, min((node[1] + 1) * size, len(self.tasks)))

    def _train(self, start: int, stop: int, size: int) -> None:
        """Queue these clients for training."""
        for first in range(start, stop, size):
            heapq.heappush(self._waiting, (first, self.tasks[first : min(first + size, stop)]))

    def over(self) -> bool:
        return self._yielded == self._count(self._top)

    def waiting(self) -> int:
        return len(self._reducible) + len(self._waiting)

    def next(self, worker: int) -> TaskChunk | None:
        """Return the next chunk for a worker. Reductions come first, because they free memory on the cluster."""
        while self._reducible:
            reduction = self._reduction(self._reducible.pop(), worker)
            if reduction is not None:  # otherwise lost parts of it are being computed again
                return reduction
        if not self._waiting:
            return None
        first, tasks = heapq.heappop(self._waiting)
        return TaskChunk(list(range(first, first + len(tasks))), list(tasks), worker)

    def is_leaf(self, chunk: TaskChunk) -> bool:
        """Whether the chunk is a whole leaf, which its worker trains and adds up."""
        return chunk.places == list(self._covers((0, chunk.places[0] // LEAF)))

    def done(self, chunk: TaskChunk, message: NodeDone | StoredSum, vectors: Any) -> None:
        """Record what a worker has computed; `vectors` is the reference to its vectors."""
        if isinstance(message, StoredSum):
            assert isinstance(chunk, NodeReduction)
            self._put(chunk.node, TreeNode(message, vectors))
            return
        tasks = [task for task in chunk.tasks if isinstance(task, TrainTask)]
        for place, result in zip(chunk.places, unstack_results(chunk.tasks, message.scalars, {})):
            assert isinstance(result, Update)
            self._results[place] = result
        leaf = 0, chunk.places[0] // LEAF
        if message.leaf is not None:
            self._put(leaf, TreeNode(message.leaf, vectors))
            return
        self._leaf_parts[chunk.places[0]] = LeafPart(tasks, message.scalars, vectors)
        self._note_if_reducible(leaf)

    def _put(self, place: NodePlace, node: TreeNode) -> None:
        self._nodes[place] = node
        for child in self._children(place):
            self._nodes.pop(child, None)
        if place[0] == 0:
            self._leaves[place[1]] = node.added
            for first in self._covers(place):
                self._leaf_parts.pop(first, None)
        if place[0] < self._top:
            self._note_if_reducible((place[0] + 1, place[1] // LEAF))

    def _children(self, node: NodePlace) -> list[NodePlace]:
        """Return the child nodes of a node."""
        level, number = node
        last = min((number + 1) * LEAF, self._count(level - 1)) if level else 0
        return [(level - 1, part) for part in range(number * LEAF, last)]

    def _note_if_reducible(self, node: NodePlace) -> None:
        if self._reduction(node) is not None:
            self._reducible.append(node)

    def _reduction(self, node: NodePlace, worker: int = -1) -> NodeReduction | None:
        """Return the reduction of a node; None if some of its parts are missing."""
        reduction = NodeReduction([], [], worker, node=node)
        if node[0]:
            children = self._children(node)
            reduction.children = [self._nodes[child] for child in children if child in self._nodes]
            complete = len(reduction.children) == len(children)
        else:
            covered = self._covers(node)
            reduction.leaf_parts = [self._leaf_parts[first] for first in covered if first in self._leaf_parts]
            complete = sum(len(part.tasks) for part in reduction.leaf_parts) == len(covered)
        return reduction if complete else None

    def lost(self, chunk: TaskChunk) -> None:
        """Hand out a lost worker's chunk again: its tasks one by one, or its reduction."""
        if isinstance(chunk, NodeReduction):
            self._reducible.append(chunk.node)
        else:
            self._train(chunk.places[0], chunk.places[-1] + 1, 1)

    def parts_lost(self, node: NodePlace) -> None:
        """Train all clients of a node again, because some of its parts were lost with their machine."""
        covered = self._covers(node)
        for place in covered:
            self._leaf_parts.pop(place, None)
        for level in range(node[0] + 1):
            for number in range(covered[0] // node_size(level), covered[-1] // node_size(level) + 1):
                self._nodes.pop((level, number), None)
        self._train(covered[0], covered[-1] + 1, self._size)
        self.trained_again += len(covered)

    def ready(self) -> Iterator[PartialSum]:
        """Yield the nodes of the top level that are next in order."""
        while not self.over() and (self._top, self._yielded) in self._nodes:
            place = self._top, self._yielded
            node = self._nodes[place]
            try:
                vectors = self._fetch(node.vectors)
            except LostError:
                self.parts_lost(place)
                return
            del self._nodes[place]
            self._yielded += 1
            yield self._summed(place, node, vectors)

    def _summed(self, place: NodePlace, node: TreeNode, vectors: Tensors) -> PartialSum:
        covered = self._covers(place)
        leaves = [self._leaves.pop(leaf) for leaf in range(covered[0] // LEAF, covered[-1] // LEAF + 1)]
        out = {order for leaf in leaves for order in leaf.dropped}
        results = [self._results.pop(at) for at in covered]
        accepted = [result for result in results if result.task.order not in out]
        dropped = [result for result in results if result.task.order in out]
        sums = Sums.of(vectors, node.added.scalars)
        return PartialSum(*place, sums, accepted, dropped, sum(leaf.wire_bytes for leaf in leaves))
