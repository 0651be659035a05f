"""The worker on a cluster: an actor that runs tasks and adds up vectors that are stored on the cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import cloudpickle

from fedrecall.backend.device import Device, find_devices
from fedrecall.client.partial_sums import PartialSum
from fedrecall.client.sums import Scalars, Sums, SumTree
from fedrecall.client.tasks import Task
from fedrecall.client.update import Update
from fedrecall.client.worker import Worker
from fedrecall.core.vector import Tensors
from fedrecall.data.federation import Federation
from fedrecall.data.handle import Handle
from fedrecall.engines.messages import (
    Failure,
    Message,
    NeedsSamples,
    NodeDone,
    NodeReady,
    PackedStates,
    StoredSum,
    VectorsLost,
)
from fedrecall.engines.ray.packing import Packed, pack_tensors, unpack_copy, unpack_tensors
from fedrecall.engines.ray.samples import SampleSource
from fedrecall.engines.ray.states import FolderToken, TravellingStates
from fedrecall.engines.task_chunks import ResultScalars, TaskResult, stack_results, unstack_results
from fedrecall.engines.task_runner import failure_of, make_worker, run_tasks
from fedrecall.runs.environment import environment


class WorkerSetup(NamedTuple):
    """The setup that every worker of a run receives once."""

    pickled: bytes  # the job and the states
    path: list[str]  # the driver's module search path
    source: SampleSource
    token: FolderToken
    device: Device


class NodeTasks(NamedTuple):
    """Tasks and the state that they start from or evaluate."""

    tasks: Sequence[Task]
    version: int  # version of the published state
    published: list[Any]  # its reference, in a list so that a worker fetches it only if it is new
    states: PackedStates


class RayWorker:
    """The actor, which Ray creates in a process on some node."""

    def begin(self, setup: WorkerSetup, handle: Handle | None = None) -> NodeReady | NeedsSamples | Failure:
        """Make the worker; `handle` names the fetched samples of a node that has none of its own."""
        try:
            self._node = this_node()
            sys.path += [folder for folder in setup.path if folder not in sys.path]
            federation = Federation.from_handle(handle) if handle else setup.source.open()
            if federation is None:
                return NeedsSamples(self._node)
            return self._make(setup, federation)
        except Exception as error:
            return failure_of(error)

    def _make(self, setup: WorkerSetup, federation: Federation) -> NodeReady:
        # Trusted: sent by the driver of this run over the cluster's own connections.
        job, states = cloudpickle.loads(setup.pickled)
        self._travelling = None if setup.token.is_seen() else TravellingStates()
        find_devices(setup.device.name)
        self._worker: Worker = make_worker(job, lambda: federation, self._travelling or states, setup.device)
        self._version, self._sent = 0, Tensors()
        return NodeReady(self._node, environment(setup.device), self._travelling is None)

    def close(self) -> None:
        """Remove this worker's files from its node."""
        self._worker.federation.close()

    def work(self, order: NodeTasks) -> Message:
        """Run tasks and return the results with their vectors."""
        results = self._run(order)
        if not isinstance(results, list):
            return results
        scalars, stacks = stack_results(results)
        return NodeDone(scalars, pack_tensors(stacks), None, self._new_states())

    def train_rows(self, order: NodeTasks) -> tuple[Message, Packed | None]:
        """Train a part of a leaf of the sum; the second object returned, its vectors, stays on this node."""
        results = self._run(order)
        if not isinstance(results, list):
            return results, None
        scalars, stacks = stack_results(results)
        return NodeDone(scalars, None, None, self._new_states()), pack_tensors(stacks)

    def train_leaf(self, order: NodeTasks, *, track_updates: bool) -> tuple[Message, Packed | None]:
        """Train and add up a leaf of the sum; the second object returned, its vectors, stays on this node."""
        results = self._run(order)
        if not isinstance(results, list):
            return results, None
        scalars, _ = stack_results(results)
        added, vectors = self._leaf(results, track_updates=track_updates)
        return NodeDone(scalars, None, added, self._new_states()), vectors

    def add_rows(
        self, order: NodeTasks, parts: Sequence[ResultScalars], vectors: Sequence[Any], *, track_updates: bool
    ) -> tuple[Message, Packed | None]:
        """Add up a leaf of the sum from its parts on the cluster."""
        fetched = fetch_all(vectors)
        if fetched is None:
            return VectorsLost(), None
        self._publish(order)
        tasks, results = list(order.tasks), list[TaskResult]()
        for part, packed in zip(parts, fetched):
            count = len(part.scalars)
            results += unstack_results(tasks[:count], part, unpack_tensors(packed))
            del tasks[:count]
        return self._leaf(results, track_updates=track_updates)

    def add_sums(self, scalars: Sequence[Scalars], vectors: Sequence[Any]) -> tuple[Message, Packed | None]:
        """Add up an inner node of the sum from its child nodes on the cluster."""
        fetched = fetch_all(vectors)
        if fetched is None:
            return VectorsLost(), None
        total, *later = (Sums.of(unpack_copy(packed), part) for packed, part in zip(fetched, scalars))
        for sums in later:
            total.add_all(sums)
        return StoredSum(total.scalars(), [], 0), pack_tensors(total.vectors())

    def _leaf(self, results: list[TaskResult], *, track_updates: bool) -> tuple[StoredSum, Packed]:
        trained = [result for result in results if isinstance(result, Update)]
        tree = SumTree(self._sent if track_updates else None)
        summed = PartialSum.leaf(trained, self._worker.job.algorithm, tree)
        dropped = [result.task.order for result in summed.dropped]
        return StoredSum(summed.sums.scalars(), dropped, summed.wire_bytes), pack_tensors(summed.sums.vectors())

    def _run(self, order: NodeTasks) -> list[TaskResult] | Failure:
        try:
            self._publish(order)
        except Exception as error:
            return failure_of(error)
        if self._travelling is not None:
            self._travelling.given = {key: unpack_tensors(state) for key, state in order.states.items()}
        return run_tasks(self._worker, order.tasks)

    def _publish(self, order: NodeTasks) -> None:
        """Fetch the published state if this worker has another version."""
        if order.version == self._version:
            return
        server, buffers = fetch_or_end(order.published[0])
        self._sent = unpack_copy(server)
        self._worker.publish(self._sent, unpack_copy(buffers))
        self._version = order.version

    def _new_states(self) -> PackedStates:
        """Take and return the clients' new states if this node cannot write to the run's folder."""
        if self._travelling is None:
            return {}
        new, self._travelling.new = self._travelling.new, {}
        return {key: pack_tensors(state) for key, state in new.items()}


def fetch_or_end(references: Any) -> Any:
    """Return objects from the cluster; end this process if its node has gone, so that others run its tasks."""
    import ray

    try:
        return ray.get(references)
    except OSError as error:
        if isinstance(error, ray.exceptions.RayError):
            raise
        os._exit(1)


def fetch_all(references: Sequence[Any]) -> list[Packed] | None:
    """Return objects from the cluster; None if any of them was lost with its node."""
    import ray

    try:
        fetched: list[Packed] = fetch_or_end(list(references))
    except ray.exceptions.RayError:
        return None
    return fetched


def this_node() -> str:
    import ray

    node: str = ray.get_runtime_context().get_node_id()
    return node
