"""Trains clients as batches of models in threads of this process: for small models and many clients.

The results equal those of `serial` up to rounding, not bitwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from queue import SimpleQueue
from typing import Self

import torch

from fedrecall.backend.device import CPU, Device
from fedrecall.client.cohort import Cohort, CohortResult
from fedrecall.client.forward_calls import changing_part
from fedrecall.client.job import Job
from fedrecall.client.lanes.lowering import Lowering, unsupported_reason
from fedrecall.client.lanes.model_reader import UnsupportedError
from fedrecall.client.mapped_step import MappedSteps, UntraceableError
from fedrecall.client.partial_sums import Contribution, Result, UpdateGroup
from fedrecall.client.plan import StepPlan, plan_groups
from fedrecall.client.tasks import Task, TrainTask
from fedrecall.client.update import MissingClient, Update
from fedrecall.client.worker import Worker
from fedrecall.core.vector import FlatModel, Tensors
from fedrecall.data.federation import Federation
from fedrecall.engines.engine import Engine
from fedrecall.engines.malloc import keep_freed_memory
from fedrecall.engines.threads import Threads
from fedrecall.errors import InputError
from fedrecall.models.build import dry_batch, strided_on_one_channel
from fedrecall.recipe.settings import Execution
from fedrecall.runs.client_states import States

CLIENTS = 256  # most clients in a batch of models: enough to outweigh the calls, with bounded memory
LEAST_WORK = 2**25  # parameters times samples: with less, Python's calls take longer than the work in lanes


class Vectorised(Engine):
    """Trains batches of clients in threads, and runs all other tasks one after the other in this thread."""

    name = "vectorised"
    own_rounding = True
    records_steps = True

    def __init__(self, workers: int, devices: Sequence[Device] = (CPU,)) -> None:
        self.workers, self.devices = workers, devices[:1]

    @classmethod
    def create(cls, workers: int, execution: Execution, devices: Sequence[Device] = (CPU,)) -> Self:
        return cls(workers, devices)

    @classmethod
    def why_not(cls, job: Job) -> str | None:
        if "previous" in job.algorithm.needs:
            return "the algorithm compares each client with its previous model"
        if job.algorithm.perturbs:
            return "the algorithm takes gradients beside the model"
        if job.batch_norm == "local" and "teacher" in job.objective.needs:
            return "batch_norm is 'local' and the objective has a teacher"
        if job.algorithm.personal and "teacher" in job.objective.needs:
            return "clients have models of their own and the objective has a teacher"
        if job.algorithm.trains_own:
            return "the algorithm trains two models of each client"
        if job.algorithm.pooled:
            return "there is one client only"
        if job.local.precision != "float32":
            return "local.precision is not float32"
        return None

    def open(self, job: Job, federation: Federation, states: States) -> None:
        reason = self.why_not(job)
        if reason:
            raise InputError(f"the engine 'vectorised' does not fit here: {reason}; choose 'serial' or 'processes'")
        keep_freed_memory()
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        self.job, self.federation = job, federation
        federation.train.map_pages()
        (device,) = self.devices
        device.fix()
        self._cohorts: SimpleQueue[Cohort] = SimpleQueue()
        with device.explained(job.local.batch_size):
            self._worker = Worker(job, federation, states, device)
            self._all = self._make_cohorts(device)
        for cohort in self._all:
            self._cohorts.put(cohort)
        self._threads = Threads(self.workers, lambda: torch.set_num_threads(1))
        # If so, clients send their models unchanged, and only the sum of the models is needed.
        self._sends_models = job.algorithm.sends_models and not job.own_buffers and job.optimiser.state == "reset"

    def _make_cohorts(self, device: Device) -> list[Cohort]:
        """Return a cohort for each thread, with its own kernels or with a mapped step that all share."""
        job, inputs = self.job, self._worker.inputs
        flat = job.build_model(self.federation, device)
        flat.module.train()
        mapped = MappedSteps(flat, job.objective.on(device.torch), job.algorithm)
        reason = self._why_not_in_lanes(job.lowering, flat) if job.lowering else None
        self._in_lanes = job.lowering is not None and reason is None
        if reason:
            self.notes = [f"clients train by a mapped step and not in lanes: {reason}"]
        if job.lowering is None or not self._in_lanes:
            self._refuse_unmappable(flat)
            return [Cohort(job, inputs, mapped) for _ in range(self.workers)]
        from fedrecall.client.lanes.cohort import LanesCohort  # loads a compiler, so only if needed

        lanes = [LanesCohort(job.lowering, job.local, inputs) for _ in range(self.workers)]
        return [Cohort(job, inputs, mapped, own) for own in lanes]

    def _refuse_unmappable(self, flat: FlatModel) -> None:
        reason = changing_part(flat, dry_batch(self.federation, flat.w.dtype).to(flat.w.device))
        if strided_on_one_channel(flat.module):  # the strides of mapped tensors cannot be changed
            reason = "torch computes strided convolutions on one channel wrongly when they are mapped"
        if reason is not None:
            raise InputError(
                f"the engine 'vectorised' cannot train this model ({reason}); choose 'serial' or 'processes'"
            )

    def _why_not_in_lanes(self, lowering: Lowering, flat: FlatModel) -> str | None:
        from fedrecall.client.lanes.check import check_clients

        if reason := unsupported_reason(lowering, self.job.algorithm):
            return reason
        try:
            check_clients(lowering, self.job.local, flat)
        except UnsupportedError as error:
            return str(error)
        return None

    def publish(self, round: int, server: Tensors, buffers: Tensors) -> None:
        self._worker.publish(server, buffers)

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        tasks = list(tasks)
        training = [task for task in tasks if isinstance(task, TrainTask)]
        if training:
            for trained in self._trained(training):
                yield from self._finished(trained)
            return
        for task in tasks:
            self.failed = task
            result = self._worker.run(task)
            self.failed = None
            yield result

    def train(self, tasks: Sequence[TrainTask], *, track_updates: bool) -> Iterator[Contribution | MissingClient]:
        # An `UpdateGroup` has neither probes nor states.
        together = self._sends_models and not tasks[0].probe
        for trained in self._trained(tasks):
            if together:
                yield self._summed(trained)
            else:
                yield from self._finished(trained)

    def _trained(self, tasks: Sequence[TrainTask]) -> Iterator[CohortResult]:
        plans = list(self._parts(tasks))
        if not self._in_lanes:
            self._make_mapped(plans)
        return self._threads.map(self._train, plans)

    def _make_mapped(self, plans: Sequence[StepPlan]) -> None:
        """Make the mapped steps before the threads start, because tracing changes torch for the whole process."""
        for plan in plans:
            with self._refusals(plan), self._worker.explained():
                self._all[0].make_mapped(plan, self._worker.server, self._worker.buffers)

    @contextmanager
    def _refusals(self, plan: StepPlan) -> Iterator[None]:
        """Raise an `InputError` for a model that torch cannot map."""
        try:
            yield
        except (RuntimeError, UntraceableError) as error:
            reason = " ".join(str(error).split()).partition(". Please")[0]
            raise InputError(
                f"the engine 'vectorised' cannot train this model ({reason}); choose 'serial' or 'processes'"
            ) from None
        except Exception:
            self.failed = plan.tasks[0]  # a mapped model fails for all of them
            raise

    def _parts(self, tasks: Sequence[TrainTask]) -> Iterator[StepPlan]:
        """Yield the batches. All are planned before training, because computing threads slow Python down."""
        for plan in plan_groups(self.job, self.federation, tasks, self._worker.least):
            clients, work = len(plan.tasks), self._worker.flat.w.numel() * int(plan.steps[0]) * plan.sizes[0]
            parts = by_sixteens(clients, work) if self._in_lanes else even_slices(clients)
            yield from map(plan.part, parts)

    def _train(self, plan: StepPlan) -> CohortResult:
        states, cohort = self._worker.client_states(plan.tasks), self._cohorts.get()
        try:
            with self._refusals(plan), self._worker.explained():
                return cohort.train(plan, states, self._worker.server, self._worker.buffers)
        finally:
            self._cohorts.put(cohort)

    def _summed(self, trained: CohortResult) -> UpdateGroup:
        buffers = trained.buffers if self._worker.flat.has_buffers else {}
        return UpdateGroup.of(trained.rows, trained.models, buffers, self._worker.flat.payload, trained.summed)

    def _finished(self, trained: CohortResult) -> Iterator[Update]:
        """Yield each client's update, after storing its new state."""
        rows, models = trained.rows, chain.from_iterable(trained.models)
        for i, (task, w, state) in enumerate(zip(rows.tasks, models, trained.states)):
            buffers = {name: stacked[i] for name, stacked in trained.buffers.items()}
            moments = {name: stacked[i] for name, stacked in trained.moments.items()}
            steps, loss = rows.steps[i], rows.losses[i]
            yield self._worker.finished_with(task, w, buffers, state, steps, loss, moments)

    def close(self) -> None:
        self._threads.close()
        torch.set_num_threads(self._threads_before)


def by_sixteens(clients: int, work: int) -> list[slice]:
    """Return slices of a quarter of the clients, or more to reach `LEAST_WORK`: in sixteens, up to `CLIENTS`."""
    quarter, enough = -(-clients // 64) * 16, -(-LEAST_WORK // (max(work, 1) * 16)) * 16
    size = min(CLIENTS, max(quarter, enough))
    return [slice(first, first + size) for first in range(0, clients, size)]


def even_slices(clients: int) -> list[slice]:
    """Return even slices that depend only on the number of clients: bits do not depend on the threads."""
    parts = -(-clients // CLIENTS)
    return [slice(i * clients // parts, (i + 1) * clients // parts) for i in range(parts)]
