"""The samples of every step of a group of clients that train together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedrecall.client.batches import steps_per_epoch
from fedrecall.client.work import Job, Rows, TrainTask
from fedrecall.data.federation import Federation
from fedrecall.rng import orders


@dataclass(frozen=True)
class Plan:
    """The samples of every step of a group of clients."""

    tasks: Sequence[TrainTask]
    clients: np.ndarray
    samples: np.ndarray  # [clients]: how many each has to train on
    positions: np.ndarray  # [clients, samples of all steps]
    sizes: list[int]  # of each step's batch, the same for all
    steps: np.ndarray  # [clients]: how many of the steps a client takes
    weights: np.ndarray  # [clients]: what its model counts in the sum of the models

    def rows(self, losses: list[float]) -> Rows:
        """The clients, with the mean losses over their steps."""
        return Rows(self.tasks, self.samples.tolist(), self.steps.tolist(), losses, self.weights.tolist())

    def part(self, rows: slice) -> Plan:
        """Some of the clients, with the steps that one of them takes."""
        steps = self.steps[rows]
        sizes = self.sizes[: int(steps.max())]
        own = self.tasks[rows], self.clients[rows], self.samples[rows], self.positions[rows, : sum(sizes)]
        return Plan(*own, sizes, steps, self.weights[rows])


def plan_of(job: Job, federation: Federation, tasks: Sequence[TrainTask], least: int) -> Plan:
    """The steps that these clients take one by one, in batches of at least `least` samples."""
    local, first = job.local, tasks[0]
    clients = np.array([task.client for task in tasks])
    samples = federation.train_sizes(clients)
    size = min(local.batch_size, int(samples[0]))
    sizes_seen, which = np.unique(samples, return_inverse=True)
    per_epoch = np.array([steps_per_epoch(int(n), local, least) for n in sizes_seen])[which]
    steps = np.full(len(tasks), first.steps or local.steps or 0)
    if not steps[0]:
        steps = (local.epochs or 0) * per_epoch
    _, of_size = np.unique(which, return_index=True)
    each = [job.algorithm.weight("w", int(samples[i]), int(steps[i])) for i in of_size]
    sizes = [size] * int(steps.max())
    if local.partial_batch == "keep":  # then all have equally many samples
        sizes = [min(size, int(samples[0]) - size * (s % int(per_epoch[0]))) for s in range(len(sizes))]
    positions = np.zeros((len(tasks), sum(sizes)), np.int64)
    for n in sizes_seen:
        rows = np.flatnonzero(samples == n)
        own = federation.train_rows(clients[rows], int(n))
        used = min(int(n), size * int(per_epoch[rows[0]]))
        start = 0
        for epoch in range(-(-int(steps[rows[0]]) // int(per_epoch[rows[0]]))):
            order = orders(job.seed, first.round, clients[rows], epoch, int(n))[:, :used]
            stop = min(start + used, positions.shape[1])
            positions[rows, start:stop] = np.take_along_axis(own, order, axis=1)[:, : stop - start]
            start = stop
        positions[rows, start:] = own[:, :1]  # of steps that these clients do not take
    return Plan(tasks, clients, samples, positions, sizes, steps, np.array(each)[which])
