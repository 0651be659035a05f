"""Workers on the nodes of a Ray cluster, or of a Ray on this machine, with the same bits as `serial`.

Ray places the workers, transfers messages and reports lost workers. The published model is one object, which each
node fetches once a round. With more than one node, the sum over the clients is reduced on the nodes, by the same
tree as on every engine: the driver receives a few vectors, whatever the number of clients.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import cloudpickle
import torch

from fedrecall.backend.device import CPU, Device
from fedrecall.client.job import Job
from fedrecall.client.partial_sums import Contribution, PartialSum
from fedrecall.client.sums import LEAF
from fedrecall.client.tasks import TrainTask
from fedrecall.client.update import MissingClient
from fedrecall.core.vector import Tensors
from fedrecall.data.federation import Federation
from fedrecall.engines.messages import (
    Computed,
    Message,
    NeedsSamples,
    NodeDone,
    NodeReady,
    PackedStates,
    Ready,
    StoredSum,
    VectorsLost,
)
from fedrecall.engines.pool import MOST_DEATHS, START, PoolCall, PoolWorker, WorkerGoneError, WorkerPool
from fedrecall.engines.ray.address import check_address
from fedrecall.engines.ray.cluster import Cluster, ray_module, resources_of_worker
from fedrecall.engines.ray.losses import Losses, NodePlace
from fedrecall.engines.ray.packing import pack_tensors, unpack_copy, unpack_tensors
from fedrecall.engines.ray.reduction import LostError, NodeReduction, TreeReduction
from fedrecall.engines.ray.samples import SampleSource, SampleSupply
from fedrecall.engines.ray.states import FolderToken
from fedrecall.engines.ray.worker import NodeTasks, RayWorker, WorkerSetup
from fedrecall.engines.task_chunks import OrderedTasks, TaskChunk, unstack_results
from fedrecall.errors import ClientError, InputError
from fedrecall.recipe.settings import Execution
from fedrecall.runs.client_states import StateFiles, States
from fedrecall.runs.environment import differing, environment

PATIENCE = 20.0  # seconds to wait for other workers after the first has started
PAUSE = 1.0
GRACE = 10.0  # seconds for workers to clean up before they are killed


@dataclass(eq=False, kw_only=True)
class WorkerActor(PoolWorker):
    """A member that is a Ray actor on some node."""

    handle: Any
    answers: deque[tuple[Any, Any]]  # references to its next messages and to their vectors
    vectors: Any = None  # the reference to the vectors of its last message
    node: str = ""
    has_states: bool = True  # whether it can read the run's folder


class Ray(WorkerPool[WorkerActor]):
    """A pool of actors, placed by Ray."""

    name = "ray"
    elsewhere = True
    at_once = 2  # a worker runs the second while the answer to the first is being sent

    def __init__(self, execution: Execution, devices: Sequence[Device] = (CPU,)) -> None:
        self.execution, self.devices = execution, devices[:1]
        self.workers = execution.workers if execution.workers != "auto" else 1  # until the cluster is known
        self.client_timeout = execution.client_timeout
        self.notes: list[str] = []
        self._losses, self._told, self._round = Losses(), list[str](), 0
        self.nodes: list[dict[str, Any]] = []

    @classmethod
    def create(cls, workers: int, execution: Execution, devices: Sequence[Device] = (CPU,)) -> Self:
        return cls(execution, devices)

    @classmethod
    def check(cls, execution: Execution) -> None:
        ray_module(alone=execution.ray_address is None)
        check_address(execution.ray_address)

    def open(self, job: Job, federation: Federation, states: States) -> None:
        assert isinstance(states, StateFiles)
        self._begin()
        after = f"; go on with: {self.resume_with}" if self.resume_with else ""
        self._cluster = Cluster(self.execution.ray_address, after=after)
        self._ray = self._cluster.ray
        self._states, self._token = states, FolderToken(states.folder)
        self._numbers, self._version, self._published = itertools.count(), 0, None
        self._reduction: TreeReduction | None = None  # set in a round whose sum is reduced on the nodes
        self._supplies: SampleSupply | None = None
        self._stillborn = 0
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(job.local.threads)
        try:
            self._asked = resources_of_worker(self.execution, job.local.threads, self.devices[0].kind)
            wanted = None if self.execution.workers == "auto" else self.execution.workers
            self.workers = self._cluster.refuse_too_little(self._asked, wanted)
            self._token.leave()
            pickled = cloudpickle.dumps((job, states))
            source = SampleSource.of(federation)
            self._supplies = SampleSupply(self._cluster, source)
            self._setup = self._cluster.put(WorkerSetup(pickled, sys.path, source, self._token, self.devices[0]))
            self._fill()
            self._first_ready()
        except BaseException:
            self.close()
            raise

    def _fill(self) -> None:
        """Create the missing workers; those without room wait in the cluster's queue."""
        while len(self._members) < self.workers:
            handle = self._cluster.actor(RayWorker, self._asked)
            deadline = time.monotonic() + max(START, self.client_timeout or 0)
            begin = handle.begin.remote(self._setup)
            place = next(self._numbers), deadline, self.devices[0]
            self._members.append(WorkerActor(*place, handle=handle, answers=deque([(begin, None)])))

    def _first_ready(self) -> None:
        """Wait for all workers; once one is ready, wait a limited time for the others, which may have no room."""
        patience = math.inf
        while waiting := [member for member in self._members if not member.ready]:
            if len(waiting) < len(self._members):
                patience = min(patience, time.monotonic() + PATIENCE)
            if time.monotonic() > patience:
                return
            for member in self._wait(waiting, PAUSE):
                self._receive(member, OrderedTasks([], self._chunk_size))
            for member in waiting:
                if not member.ready and member.deadline <= time.monotonic():
                    self._start_timed_out(member)

    def publish(self, round: int, server: Tensors, buffers: Tensors) -> None:
        super().publish(round, server, buffers)
        self._round = round
        if self._losses.unexplained():
            self._cluster.wait_for_head()
            self._note_losses()
        self._version += 1
        self._published = self._cluster.put((pack_tensors(server), pack_tensors(buffers)))

    def train(self, tasks: Sequence[TrainTask], *, track_updates: bool) -> Iterator[Contribution | MissingClient]:
        if len(tasks) <= LEAF or len({member.node for member in self._members if member.ready}) < 2:
            yield from super().train(tasks, track_updates=track_updates)
            return
        size = self._chunk_size(len(tasks))
        self._reduction = TreeReduction(list(tasks), size, self._fetch, track_updates=track_updates)
        try:
            for result in self._complete(self._reduction):
                assert isinstance(result, PartialSum)
                yield result
        finally:
            if self._reduction.trained_again:
                self._losses.updates(self._round, self._reduction.trained_again)
                self._note_losses()
            self._reduction = None

    def _takes_tasks(self, member: WorkerActor) -> bool:
        return member.ready  # others may have to wait for room on the cluster

    def _set_deadline(self, member: WorkerActor) -> None:
        super()._set_deadline(member)
        if member.chunks and isinstance(member.chunks[0], NodeReduction):
            member.deadline = math.inf  # it runs no user code, and its time depends on the length of the vectors

    def _send(self, member: WorkerActor, chunk: TaskChunk) -> None:
        order = NodeTasks(chunk.tasks, self._version, [self._published], self._states_for(member, chunk))
        if self._reduction is None:
            member.answers.append((member.handle.work.remote(order), None))
        elif isinstance(chunk, NodeReduction):
            member.answers.append(self._reduce(member, chunk, order, track_updates=self._reduction.track_updates))
        elif self._reduction.is_leaf(chunk):
            train = member.handle.train_leaf.options(num_returns=2)
            member.answers.append(tuple(train.remote(order, track_updates=self._reduction.track_updates)))
        else:
            member.answers.append(tuple(member.handle.train_rows.options(num_returns=2).remote(order)))

    def _reduce(
        self, member: WorkerActor, chunk: NodeReduction, order: NodeTasks, *, track_updates: bool
    ) -> tuple[Any, Any]:
        """Let a worker add up a node; return the references to its message and its vectors."""
        if chunk.children:
            scalars = [node.added.scalars for node in chunk.children]
            vectors = [node.vectors for node in chunk.children]
            message, total = member.handle.add_sums.options(num_returns=2).remote(scalars, vectors)
        else:
            order = order._replace(tasks=[task for part in chunk.leaf_parts for task in part.tasks])
            parts = [part.scalars for part in chunk.leaf_parts]
            vectors = [part.vectors for part in chunk.leaf_parts]
            add_rows = member.handle.add_rows.options(num_returns=2)
            message, total = add_rows.remote(order, parts, vectors, track_updates=track_updates)
        return message, total

    def _states_for(self, member: WorkerActor, chunk: TaskChunk) -> PackedStates:
        """Return the states that the tasks start from, for a worker that cannot read the run's folder."""
        if member.has_states:
            return {}
        wanted = [(task.client, task.state_version) for task in chunk.tasks if task.client is not None]
        return {key: pack_tensors(self._states.get(*key)) for key in wanted if key[1]}

    def _wait(self, members: Sequence[WorkerActor], seconds: float | None) -> list[WorkerActor]:
        if not members:
            raise ClientError("all workers are lost, and the cluster has no room for others")
        by_answer = {member.answers[0][0]: member for member in members}
        return [by_answer[answer] for answer in self._cluster.wait(list(by_answer), seconds)]

    def _message(self, member: WorkerActor) -> Message | None:
        errors, (answer, member.vectors) = self._ray.exceptions, member.answers.popleft()
        try:
            message: Message | NeedsSamples = self._cluster.get(answer)
        except errors.RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, InputError) else ClientError(f"a worker failed:\n\n{error}") from None
        except errors.RayError as error:
            self._cluster.wait_for_head()  # if that has gone too, the worker cannot be replaced
            raise WorkerGoneError(type(error).__name__) from None
        if not isinstance(message, NeedsSamples):
            return message
        assert self._supplies is not None
        begin = member.handle.begin.remote(self._setup, self._supplies.of_node(message.node))
        member.answers.append((begin, None))
        member.node = message.node
        return None

    def _finish(self, work: PoolCall, member: WorkerActor, chunk: TaskChunk, message: Computed) -> None:
        vectors, member.vectors = member.vectors, None  # freed on the cluster once the work drops them
        if isinstance(message, NodeDone):
            for (client, round), state in message.states.items():
                self._states.put(client, round, unpack_tensors(state))
        match work, message:
            case OrderedTasks(), NodeDone(vectors=packed) if packed is not None:
                work.done(chunk, unstack_results(chunk.tasks, message.scalars, unpack_tensors(packed)))
            case TreeReduction(), NodeDone() | StoredSum():
                work.done(chunk, message, vectors)
            case TreeReduction(), VectorsLost():
                assert isinstance(chunk, NodeReduction)
                work.parts_lost(chunk.node)
            case _:
                raise AssertionError

    def _fetch(self, vectors: Any) -> Tensors:
        try:
            return unpack_copy(self._cluster.get(vectors))
        except self._ray.exceptions.RayError:
            raise LostError from None

    def _note_death(self, member: WorkerActor, how: str) -> None:
        super()._note_death(member, how)
        if member.ready:  # else it had no tasks yet
            place = NodePlace(member.node, self._cluster.host_of(member.node))
            tasks = [task for chunk in member.chunks for task in chunk.tasks]
            self._losses.worker(self._round, place, sum(isinstance(task, TrainTask) for task in tasks))
            self._note_losses()

    def _note_losses(self) -> None:
        """Bring the notes up to date."""
        self._losses.explain(self._cluster.gone(self._losses.unexplained()))
        others = [note for note in self.notes if note not in self._told]
        self._told = self._losses.sentences()
        self.notes = [*others, *self._told]

    def _joined(self, member: WorkerActor, ready: Ready) -> None:
        assert isinstance(ready, NodeReady)
        member.node, member.has_states = ready.node, ready.has_states
        if ready.environment not in self.nodes:
            self.nodes.append(ready.environment)
            here, there = environment(self.devices[0]), ready.environment
            other = [f"{key} is {there.get(key)} there and {here.get(key)} here" for key in differing(here, there)]
            if other:
                self.notes.append(f"bits may differ: a node is not as this machine: {'; '.join(other)}")

    def _kill(self, member: WorkerActor) -> None:
        self._ray.kill(member.handle)

    def _release(self, member: WorkerActor) -> None:
        with contextlib.suppress(Exception):  # its node may be gone as well
            self._ray.kill(member.handle)
        self._members.remove(member)
        if not member.ready:  # perhaps because it did not receive its samples
            assert self._supplies is not None
            self._supplies.forget(member.node)
            self._stillborn += 1
            if self._stillborn == MOST_DEATHS * self.workers:
                raise ClientError("workers ended before they began; Ray's own logs say more (`ray logs`)")

    def _start_timed_out(self, member: WorkerActor) -> None:
        """Extend the deadline if other workers are ready; otherwise end the run."""
        if any(other.ready for other in self._members):
            member.deadline = time.monotonic() + START
            return
        raise self._cluster.silence(self._asked, self.workers, START)

    def close(self) -> None:
        """Stop the workers; idle ones may remove their files first."""
        if not self._cluster.lost:
            self._end_workers()
        self._published, self._setup, self._members = None, None, []
        self._token.remove()
        torch.set_num_threads(self._threads_before)
        self._cluster.close()

    def _end_workers(self) -> None:
        idle = [member for member in self._members if member.ready and not member.chunks]
        leaving = [member.handle.close.remote() for member in idle]
        if self._supplies is not None:
            leaving += self._supplies.close()
        with contextlib.suppress(Exception):  # the cluster may be gone
            if leaving:
                self._ray.wait(leaving, num_returns=len(leaving), timeout=GRACE)
            for member in self._members:
                self._ray.kill(member.handle)
