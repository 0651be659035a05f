"""A worker on a cluster: an actor that trains and evaluates as every worker does, and adds up what others left on
the cluster.

What it is sent, and the errors that it may meet, are those of one run's own processes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import cloudpickle

from fedrecall.client.partial_sums import PartialSum
from fedrecall.client.sums import Scalars, Sums, SumTree
from fedrecall.client.tasks import Task
from fedrecall.client.update import Update
from fedrecall.client.worker import Worker
from fedrecall.data.federation import Federation, Handle
from fedrecall.device import Device, find_devices
from fedrecall.engines.answering import Message, answer, make_worker, refusal
from fedrecall.engines.parcels import Answer, Rest, stacked, unstacked
from fedrecall.engines.ray.parcel_post import Packed, pack, unpack, unpack_copy
from fedrecall.engines.ray.samples import SampleSource
from fedrecall.engines.ray.states import FolderToken, TravellingStates
from fedrecall.runs.environment import environment
from fedrecall.vector import Tensors

StatesOnTheWay = dict[tuple[int, int], Packed]  # by client and version


class Setup(NamedTuple):
    """What every worker of a run is told once."""

    pickled: bytes  # the job and the states' place
    path: list[str]  # where the driver looks for modules
    source: SampleSource
    token: FolderToken
    device: Device


class Joined(NamedTuple):
    """What a worker says of where it is."""

    node: str
    environment: dict[str, Any]
    has_states: bool  # it reaches the run's folder


class Order(NamedTuple):
    """Tasks, and the state that they start from or evaluate."""

    tasks: Sequence[Task]
    version: int  # of what is published
    published: list[Any]  # the reference to it, in a list: fetched only where it is new
    states: StatesOnTheWay


class Added(NamedTuple):
    """Of a node of the sum all but its vectors."""

    scalars: Scalars
    dropped: list[int]  # of a leaf: the places of clients whose numbers are not finite
    wire_bytes: int


class RayWorker:
    """Ray makes one of these in a process on some node."""

    def begin(self, setup: Setup, handle: Handle | None = None) -> Message:
        """Make the worker; "needs samples" if this node has not got them and they are not given."""
        try:
            self._node = this_node()
            sys.path += [folder for folder in setup.path if folder not in sys.path]
            federation = handle.open() if handle else setup.source.open()
            if federation is None:
                return "needs samples", None, self._node
            return "ready", None, self._make(setup, federation)
        except Exception as error:
            return refusal(error)

    def _make(self, setup: Setup, federation: Federation) -> Joined:
        # From the driver of this run, over the cluster's own connections.
        job, states = cloudpickle.loads(setup.pickled)
        self._on_the_way = None if setup.token.is_seen() else TravellingStates()
        find_devices(setup.device.name)
        self._worker: Worker = make_worker(job, lambda: federation, self._on_the_way or states, setup.device)
        self._version, self._sent = 0, Tensors()
        return Joined(self._node, environment(setup.device), self._on_the_way is None)

    def close(self) -> None:
        """Leave nothing on this node."""
        self._worker.federation.close()

    def work(self, order: Order) -> Message:
        """The results of tasks, their vectors too."""

        def packed(results: list[Answer]) -> tuple[Rest, Packed, StatesOnTheWay]:
            rest, stacks = stacked(results)
            return rest, pack(stacks), self._new_states()

        return self._answer(order, packed)

    def train_rows(self, order: Order) -> tuple[Message, Packed | None]:
        """Part of a leaf of the sum: results, whose vectors stay on this node."""
        vectors: Packed | None = None

        def packed(results: list[Answer]) -> tuple[Rest, None, StatesOnTheWay]:
            nonlocal vectors
            rest, stacks = stacked(results)
            vectors = pack(stacks)
            return rest, None, self._new_states()

        return self._answer(order, packed), vectors

    def train_leaf(self, order: Order, *, looked_at: bool) -> tuple[Message, Packed | None]:
        """A whole leaf of the sum, added up; its vectors stay on this node."""
        vectors: Packed | None = None

        def packed(results: list[Answer]) -> tuple[Rest, Added, StatesOnTheWay]:
            nonlocal vectors
            rest, _ = stacked(results)
            added, vectors = self._leaf(results, looked_at=looked_at)
            return rest, added, self._new_states()

        return self._answer(order, packed), vectors

    def add_rows(
        self, order: Order, rests: Sequence[Rest], vectors: Sequence[Any], *, looked_at: bool
    ) -> tuple[Message, Packed | None]:
        """A leaf of the sum, of parts that lie on the cluster."""
        found = fetched(vectors)
        if found is None:
            return ("lost", None, None), None
        self._publish(order)
        tasks, results = list(order.tasks), list[Answer]()
        for rest, packed in zip(rests, found):
            count = len(rest[0])
            results += unstacked(tasks[:count], rest, unpack(packed))
            del tasks[:count]
        added, sums = self._leaf(results, looked_at=looked_at)
        return ("added", None, added), sums

    def add_sums(self, scalars: Sequence[Scalars], vectors: Sequence[Any]) -> tuple[Message, Packed | None]:
        """A higher node of the sum, of nodes that lie on the cluster."""
        found = fetched(vectors)
        if found is None:
            return ("lost", None, None), None
        total, *later = (Sums.of(unpack_copy(packed), rest) for packed, rest in zip(found, scalars))
        for part in later:
            total.add_all(part)
        return ("added", None, Added(total.scalars(), [], 0)), pack(total.vectors())

    def _leaf(self, results: list[Answer], *, looked_at: bool) -> tuple[Added, Packed]:
        trained = [result for result in results if isinstance(result, Update)]
        tree = SumTree(self._sent if looked_at else None)
        summed = PartialSum.leaf(trained, self._worker.job.algorithm, tree)
        dropped = [result.task.order for result in summed.dropped]
        return Added(summed.sums.scalars(), dropped, summed.wire_bytes), pack(summed.sums.vectors())

    def _answer(self, order: Order, packed: Any) -> Message:
        try:
            self._publish(order)
        except Exception as error:
            return refusal(error)
        if self._on_the_way is not None:
            self._on_the_way.given = {key: unpack(state) for key, state in order.states.items()}
        return answer(self._worker, order.tasks, packed)

    def _publish(self, order: Order) -> None:
        """What the tasks start from, if it is not what this worker has."""
        if order.version == self._version:
            return
        import ray

        server, buffers = ray.get(order.published[0])
        self._sent = unpack_copy(server)
        self._worker.publish(self._sent, unpack_copy(buffers))
        self._version = order.version

    def _new_states(self) -> StatesOnTheWay:
        """The states that these tasks have left, for the driver to keep."""
        if self._on_the_way is None:
            return {}
        new, self._on_the_way.new = self._on_the_way.new, {}
        return {key: pack(state) for key, state in new.items()}


def fetched(references: Sequence[Any]) -> list[Packed] | None:
    """What lies on the cluster; None if a part of it is lost with its node."""
    import ray

    try:
        found: list[Packed] = ray.get(list(references))
    except ray.exceptions.RayError:
        return None
    return found


def this_node() -> str:
    import ray

    node: str = ray.get_runtime_context().get_node_id()
    return node
