"""Plans of groups of clients that train together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedrecall.client.batches import LocalPlan
from fedrecall.client.job import Job
from fedrecall.client.partial_sums import GroupRows
from fedrecall.client.tasks import TrainTask
from fedrecall.core.rng import orders
from fedrecall.data.federation import Federation


@dataclass(frozen=True)
class StepPlan:
    """The samples of every step of a group of clients."""

    tasks: Sequence[TrainTask]
    clients: np.ndarray
    samples: np.ndarray  # [clients]: number of training samples
    positions: np.ndarray  # [clients, samples of all steps]
    sizes: list[int]  # batch size of each step, the same for all clients
    steps: np.ndarray  # [clients]: number of steps taken
    weights: np.ndarray  # [clients]: weight in the sum of the models

    def rows(self, losses: list[float]) -> GroupRows:
        """Return the clients with the mean losses over their steps."""
        return GroupRows(self.tasks, self.samples.tolist(), self.steps.tolist(), losses, self.weights.tolist())

    def part(self, rows: slice) -> StepPlan:
        """Return the plan of some clients, without steps that none of them takes."""
        steps = self.steps[rows]
        sizes = self.sizes[: int(steps.max())]
        own = self.tasks[rows], self.clients[rows], self.samples[rows], self.positions[rows, : sum(sizes)]
        return StepPlan(*own, sizes, steps, self.weights[rows])


def plan_groups(job: Job, federation: Federation, tasks: Sequence[TrainTask], least: int) -> Iterator[StepPlan]:
    """Yield a plan per group of clients with equal batch sizes, largest first; `least` limits partial batches."""
    clients = np.array([task.client for task in tasks])
    samples = federation.index.train_sizes(clients)
    alike = samples if job.local.partial_batch == "keep" else np.minimum(samples, job.local.batch_size)
    for size in sorted(set(alike.tolist()), reverse=True):
        rows = np.flatnonzero(alike == size)
        together = tasks if len(rows) == len(tasks) else [tasks[row] for row in rows.tolist()]
        yield plan_group(job, federation, together, clients[rows], samples[rows], least)


def plan_group(
    job: Job, federation: Federation, tasks: Sequence[TrainTask], clients: np.ndarray, samples: np.ndarray,
    least: int,
) -> StepPlan:  # fmt: skip
    """Return a plan with the same steps as if these clients trained one by one."""
    local, first = job.local, tasks[0]
    asked = np.array([task.steps for task in tasks])  # of stragglers; 0 for the others
    kinds = set(zip(samples.tolist(), asked.tolist()))
    own_plans = {(n, given): LocalPlan.of(local, n, least, given) for n, given in kinds}
    n = int(samples[0])
    size, per_epoch = own_plans[n, first.steps].size, own_plans[n, first.steps].per_epoch
    sizes = [size] * max(plan.steps for plan in own_plans.values())
    if local.partial_batch == "keep":  # then all clients have the same number of samples
        sizes = [min(size, n - size * (s % per_epoch)) for s in range(len(sizes))]
    positions = np.zeros((len(tasks), sum(sizes)), np.int64)
    steps, weights = np.zeros(len(tasks), np.int64), np.zeros(len(tasks))
    for (n, given), plan in own_plans.items():
        rows = np.flatnonzero((samples == n) & (asked == given)) if len(own_plans) > 1 else slice(None)
        steps[rows], weights[rows] = plan.steps, job.algorithm.weight("w", n, plan.steps)
        own, used, start = federation.index.train_rows(clients[rows], n), min(n, size * plan.per_epoch), 0
        for epoch in range(-(-plan.steps // plan.per_epoch)):
            order = orders(job.seed, first.round, clients[rows], epoch, n)[:, :used]
            stop = min(start + used, positions.shape[1])
            positions[rows, start:stop] = np.take_along_axis(own, order, axis=1)[:, : stop - start]
            start = stop
        positions[rows, start:] = own[:, :1]  # padding for steps that these clients do not take
    return StepPlan(tasks, clients, samples, positions, sizes, steps, weights)
