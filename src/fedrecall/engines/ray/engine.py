"""Workers on the nodes of a Ray cluster, or of a Ray on this machine: the bits of `serial`, past one machine.

Ray places the workers, moves what they are sent and tells when one is gone. The published model is one object,
which each node fetches once a round. Where there is more than one node, the sum over the clients is added up where
they trained, as the tree that it is on every engine: a few vectors come here, however many clients there are.
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

from fedrecall.client.job import Job
from fedrecall.client.partial_sums import Contribution, PartialSum, Result
from fedrecall.client.sums import LEAF
from fedrecall.client.tasks import TrainTask
from fedrecall.client.update import Missing
from fedrecall.data.federation import Federation
from fedrecall.device import CPU, Device
from fedrecall.engines.answering import Message
from fedrecall.engines.parcels import Parcel, unstacked
from fedrecall.engines.pool import MOST_DEATHS, START, GoneError, Member, WorkerPool
from fedrecall.engines.ray.adding import Adding, Additions, LostError
from fedrecall.engines.ray.cluster import Cluster, ray_module, refuse_silent, resources_of_worker
from fedrecall.engines.ray.parcel_post import pack, unpack, unpack_copy
from fedrecall.engines.ray.samples import SampleSource, Supplies
from fedrecall.engines.ray.states import FolderToken
from fedrecall.engines.ray.worker import Joined, Order, RayWorker, Setup, StatesOnTheWay
from fedrecall.errors import ClientError, InputError
from fedrecall.recipe.settings import Execution
from fedrecall.runs.client_states import StateFiles, States
from fedrecall.runs.environment import differing, environment
from fedrecall.vector import Tensors

PATIENCE = 20.0  # seconds after the first worker in which others are waited for
PAUSE = 1.0
GRACE = 10.0  # seconds for workers to end by themselves


@dataclass(eq=False, kw_only=True)
class Actor(Member):
    """A member that is an actor on some node."""

    handle: Any
    answers: deque[tuple[Any, Any]]  # the references to its next messages, and to what stays on its node of each
    node: str = ""
    has_states: bool = True  # it reaches the run's folder


class Ray(WorkerPool[Actor]):
    """Actors, placed by Ray."""

    name = "ray"
    elsewhere = True
    at_once = 2  # a worker goes on with the second while its answer to the first is on the way

    def __init__(self, execution: Execution, devices: Sequence[Device] = (CPU,)) -> None:
        self.execution, self.devices = execution, devices[:1]
        self.workers = execution.workers if execution.workers != "auto" else 1  # until the cluster is known
        self.client_timeout = execution.client_timeout
        self.notes: list[str] = []
        self.nodes: list[dict[str, Any]] = []

    @classmethod
    def create(cls, workers: int, execution: Execution, devices: Sequence[Device] = (CPU,)) -> Self:
        return cls(execution, devices)

    @classmethod
    def check(cls, execution: Execution) -> None:
        ray_module(alone=execution.ray_address is None)
        refuse_silent(execution.ray_address)

    def open(self, job: Job, federation: Federation, states: States) -> None:
        assert isinstance(states, StateFiles)
        self._begin()
        self._cluster = Cluster(self.execution.ray_address)
        self._ray = self._cluster.ray
        self._states, self._token = states, FolderToken(states.folder)
        self._numbers, self._version, self._published = itertools.count(), 0, None
        self._additions: Additions | None = None  # of a round whose sum is added up on the nodes
        self._supplies: Supplies | None = None
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
            self._supplies = Supplies(self._cluster, source)
            self._setup = self._ray.put(Setup(pickled, sys.path, source, self._token, self.devices[0]))
            self._fill()
            self._first_ready()
        except BaseException:
            self.close()
            raise

    def _fill(self) -> None:
        """Those for which there is no room now wait in the cluster's queue, and join when there is."""
        while len(self._members) < self.workers:
            handle = self._cluster.actor(RayWorker, self._asked)
            deadline = time.monotonic() + max(START, self.client_timeout or 0)
            begin = handle.begin.remote(self._setup)
            place = next(self._numbers), deadline, self.devices[0]
            self._members.append(Actor(*place, handle=handle, answers=deque([(begin, None)])))

    def _first_ready(self) -> None:
        """Wait for all workers or, once there is one, a while for the others: their room may be taken."""
        patience = math.inf
        while waiting := [member for member in self._members if not member.ready]:
            if len(waiting) < len(self._members):
                patience = min(patience, time.monotonic() + PATIENCE)
            if time.monotonic() > patience:
                return
            for member in self._wait(waiting, PAUSE):
                self._receive(member, NoWork())
            for member in waiting:
                if not member.ready and member.deadline <= time.monotonic():
                    self._silent(member)

    def publish(self, round: int, server: Tensors, buffers: Tensors) -> None:
        super().publish(round, server, buffers)
        self._version += 1
        self._published = self._ray.put((pack(server), pack(buffers)))

    def train(self, tasks: Sequence[TrainTask], *, looked_at: bool) -> Iterator[Contribution | Missing]:
        if len(tasks) <= LEAF or len({member.node for member in self._members if member.ready}) < 2:
            yield from super().train(tasks, looked_at=looked_at)
            return
        self._additions = Additions(list(tasks), self._parcel_size(len(tasks)), self._fetch, looked_at=looked_at)
        try:
            for result in self._through(self._additions):
                assert isinstance(result, PartialSum)
                yield result
        finally:
            self._additions = None

    def _takes_tasks(self, member: Actor) -> bool:
        return member.ready  # who waits for room may wait for long

    def _set_deadline(self, member: Actor) -> None:
        super()._set_deadline(member)
        if member.parcels and isinstance(member.parcels[0], Adding):
            member.deadline = math.inf  # no code of the user's, and as long as the vectors are

    def _send(self, member: Actor, parcel: Parcel) -> None:
        order = Order(parcel.tasks, self._version, [self._published], self._states_for(member, parcel))
        if self._additions is None:
            member.answers.append((member.handle.work.remote(order), None))
            return
        looked_at, worker = {"looked_at": self._additions.looked_at}, member.handle
        if isinstance(parcel, Adding) and parcel.node[0] == 0:
            rests, vectors = [rows.rest for rows in parcel.parts], [rows.vectors for rows in parcel.parts]
            order = order._replace(tasks=[task for rows in parcel.parts for task in rows.tasks])
            sent = worker.add_rows.options(num_returns=2).remote(order, rests, vectors, **looked_at)
        elif isinstance(parcel, Adding):
            scalars, vectors = (
                [node.added.scalars for node in parcel.parts],
                [node.vectors for node in parcel.parts],
            )
            sent = worker.add_sums.options(num_returns=2).remote(scalars, vectors)
        elif self._additions.is_leaf(parcel):
            sent = worker.train_leaf.options(num_returns=2).remote(order, **looked_at)
        else:
            sent = worker.train_rows.options(num_returns=2).remote(order)
        member.answers.append(tuple(sent))

    def _states_for(self, member: Actor, parcel: Parcel) -> StatesOnTheWay:
        """The states that its tasks start from, for a worker that does not reach the run's folder."""
        if member.has_states:
            return {}
        wanted = [(task.client, task.state_version) for task in parcel.tasks if task.client is not None]
        return {key: pack(self._states.get(*key)) for key in wanted if key[1]}

    def _wait(self, members: Sequence[Actor], seconds: float | None) -> list[Actor]:
        if not members:
            raise ClientError("all workers are lost, and the cluster has no room for others")
        by_answer = {member.answers[0][0]: member for member in members}
        there, _ = self._ray.wait(list(by_answer), num_returns=1, timeout=seconds)
        if there:  # and all others that are
            there, _ = self._ray.wait(list(by_answer), num_returns=len(by_answer), timeout=0)
        return [by_answer[answer] for answer in there]

    def _message(self, member: Actor) -> Message:
        errors, (answer, vectors) = self._ray.exceptions, member.answers.popleft()
        try:
            kind, what, extra = self._ray.get(answer)
        except errors.RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, InputError) else ClientError(f"a worker failed:\n\n{error}") from None
        except errors.RayError as error:
            raise GoneError(type(error).__name__) from None
        if kind == "needs samples":
            assert self._supplies is not None
            begin = member.handle.begin.remote(self._setup, self._supplies.of_node(extra))
            member.answers.append((begin, None))
            member.node = extra
            return "again", None, None
        if kind == "lost":
            parcel = self._take_first(member)
            assert isinstance(parcel, Adding)
            assert self._additions is not None
            self._additions.parts_lost(parcel.node)
            return "again", None, None
        if kind == "added":
            return "done", None, (None, extra, {}, vectors)
        return kind, what, (*extra, vectors) if kind == "done" else extra

    def _unpack(self, parcel: Parcel, extra: Any) -> Any:
        rest, what, states, vectors = extra
        for (client, round), state in states.items():
            self._states.put(client, round, unpack(state))
        if self._additions is None:
            return unstacked(parcel.tasks, rest, unpack(what))
        return rest, what, vectors

    def _fetch(self, vectors: Any) -> Tensors:
        try:
            return unpack_copy(self._ray.get(vectors))
        except self._ray.exceptions.RayError:
            raise LostError from None

    def _joined(self, member: Actor, extra: Joined) -> None:
        member.node, member.has_states = extra.node, extra.has_states
        if extra.environment not in self.nodes:
            self.nodes.append(extra.environment)
            here, there = environment(self.devices[0]), extra.environment
            other = [f"{key} is {there.get(key)} there and {here.get(key)} here" for key in differing(here, there)]
            if other:
                self.notes.append(f"bits may differ: a node is not as this machine: {'; '.join(other)}")

    def _kill(self, member: Actor) -> None:
        self._ray.kill(member.handle)

    def _bury(self, member: Actor) -> None:
        with contextlib.suppress(Exception):  # its node may be gone as well
            self._ray.kill(member.handle)
        self._members.remove(member)
        if not member.ready:  # perhaps because its samples did not come
            assert self._supplies is not None
            self._supplies.forget(member.node)
            self._stillborn += 1
            if self._stillborn == MOST_DEATHS * self.workers:
                raise ClientError("workers ended before they began; Ray's own logs say more (`ray logs`)")

    def _silent(self, member: Actor) -> None:
        """Others go on without it while it waits for room; without any there is nothing to wait for."""
        if any(other.ready for other in self._members):
            member.deadline = time.monotonic() + START
            return
        raise self._cluster.silence(self._asked, self.workers, START)

    def close(self) -> None:
        """End the workers: at once, unless they have nothing to do."""
        idle = [member for member in self._members if member.ready and not member.parcels]
        leaving = [member.handle.close.remote() for member in idle]
        if self._supplies is not None:
            leaving += self._supplies.close()
        with contextlib.suppress(Exception):  # the cluster may be gone
            if leaving:
                self._ray.wait(leaving, num_returns=len(leaving), timeout=GRACE)
            for member in self._members:
                self._ray.kill(member.handle)
        self._published, self._setup, self._members = None, None, []
        self._token.remove()
        torch.set_num_threads(self._threads_before)
        self._cluster.close()


class NoWork:
    """Nothing to do, while workers are waited for."""

    def over(self) -> bool:
        return True

    def waiting(self) -> int:
        return 0

    def next(self, worker: int) -> Parcel | None:
        return None

    def done(self, parcel: Parcel, results: Any) -> None:
        raise AssertionError

    def lost(self, parcel: Parcel) -> None:
        raise AssertionError

    def ready(self) -> Iterator[Result]:
        return iter(())
