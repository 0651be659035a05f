"""A cohort's clients by sixteens, a client in each lane, where the algorithm and the objective allow it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedrecall.client.graph import UntraceableError
from fedrecall.client.inputs import Inputs
from fedrecall.client.lanes.clients import Batches, LanesClients
from fedrecall.client.lanes.ir import LANES
from fedrecall.client.lanes.layers import Pixels
from fedrecall.client.plan import Plan
from fedrecall.client.step import NOTHING, TOLERANCES, Step, is_near
from fedrecall.client.work import Job
from fedrecall.data.transform import Images, Plain
from fedrecall.objectives.cross_entropy import CrossEntropy
from fedrecall.objectives.wsm import WSM
from fedrecall.vector import Tensors

MOST_SAMPLES = 1024  # that are made ready at a time: some megabytes of images

Augment = list[torch.Generator]


def why_not(job: Job) -> str | None:
    """Why clients cannot train in lanes whatever the model is: loss and SGD are part of the kernels."""
    if job.algorithm.corrects or "features" in job.algorithm.needs:
        return "the algorithm changes gradients or the loss"
    kind = type(job.objective)
    if not (kind is CrossEntropy or (kind is WSM and not job.objective.needs)):
        return "the objective is neither cross-entropy nor WSM without distillation"
    return None


class LanesCohort:
    """Kernels for one model, compared with an eager step when they are made."""

    def __init__(self, job: Job, inputs: Inputs, step: Step) -> None:
        self.job, self.inputs, self.step = job, inputs, step
        self._kernels: LanesClients | None = None
        self._whole = samples_as_they_lie(inputs)
        transform = inputs.federation.transform
        self._pixels = (
            Pixels(*transform.scale_and_shift) if isinstance(transform, Images) and self._whole else None
        )

    def prepare(self, plan: Plan, start: Tensor, client: Tensors) -> None:
        """Kernels for this model, unless there are some; an `UntraceableError` says why there are none."""
        if self._kernels is not None:
            return
        flat = self.step.flat
        first = np.repeat(plan.positions[:1, : plan.sizes[0]], LANES, axis=0)
        batches = self._batches(first, LANES, 1, torch.ones(1, LANES, dtype=torch.long), [])
        x, target = self.inputs(self.inputs.federation.train, torch.from_numpy(first[0]))
        kernels = LanesClients(flat, self.job.local, x, pixels=self._pixels)
        vector = start if start.ndim == 1 else start[0]
        flat.w.copy_(vector)
        loss = self.step.eager(x, target, {name: tensor[0] for name, tensor in client.items()}, NOTHING)
        moved = -(flat.g + self.job.local.weight_decay * vector)
        w, offset = kernels.start(vector, 1), client.get("log_weight")
        offsets = kernels.offsets(None if offset is None else offset[:1].expand(1, LANES, -1), 1)
        found = kernels.run(w, batches, offsets, 1.0)
        pairs = ((loss, found[0, 0]), (moved, w[0, : len(vector), 0] - vector))
        if not all(is_near(ours.double(), theirs.double(), TOLERANCES["lanes"]) for ours, theirs in pairs):
            raise UntraceableError("its first step differs from the eager one")
        self._kernels = kernels

    def forget(self) -> None:
        """The model may do something else now."""
        self._kernels = None

    def train(
        self, plan: Plan, start: Tensor, client: Tensors, lr: float, augment: Augment
    ) -> tuple[list[int], list[Tensor], list[float]]:
        """The clients in the order in which they went into lanes, those with as many steps together; their models
        in this order, sixteen in a block [clients, parameters], which is a transposed view; and the mean loss over
        each one's steps. `start` is one vector for all, or one each."""
        order = np.argsort(-plan.steps, kind="stable")
        groups = -(-len(order) // LANES)
        lanes = order[np.arange(groups * LANES).clip(max=len(order) - 1)].reshape(groups, LANES)
        steps = plan.steps[lanes]
        steps.reshape(-1)[len(order) :] = 0  # lanes that repeat the last client
        # Where samples are used as they lie, all groups are made ready at once.
        size = groups if self._whole else 1
        models, losses = list[Tensor](), list[float]()
        for first in range(0, groups, size):
            part = slice(first, first + size)
            w, mean = self._groups(plan, lanes[part], torch.from_numpy(steps[part]), start, client, lr, augment)
            models += w[:, : self.step.flat.w.numel()].transpose(1, 2).unbind()
            losses += mean.view(-1).tolist()
        models[-1] = models[-1][: len(order) - (groups - 1) * LANES]
        return order.tolist(), models, losses[: len(order)]

    def _groups(
        self, plan: Plan, lanes: np.ndarray, steps: Tensor, start: Tensor, client: Tensors, lr: float,
        augment: Augment,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Weights [groups, parameters, 16] and mean losses [groups, 16] after all steps."""
        kernels = self._kernels
        assert kernels is not None
        offset = client.get("log_weight")
        w = kernels.start(start if start.ndim == 1 else start[lanes], len(lanes))
        offsets = kernels.offsets(None if offset is None else offset[lanes], len(lanes))
        clients = len(np.unique(lanes))  # the last lanes may repeat one
        own = [augment[i] for i in lanes.reshape(-1)[:clients]] if augment else []
        positions = plan.positions[lanes.reshape(-1)]
        total = torch.zeros(lanes.shape)
        for first, count, at in self._parts(plan.sizes[: int(steps.max())], bool(augment)):
            chosen = positions[:, at : at + count * plan.sizes[first]]
            batches = self._batches(chosen, clients, count, (steps - first).clamp(min=0, max=count), own)
            total += kernels.run(w, batches, offsets, lr)
        return w, total / steps.clamp(min=1)

    def _parts(self, sizes: list[int], augments: bool) -> Iterator[tuple[int, int, int]]:
        """Steps of one batch size, as many as are made ready together: the first, how many, and where their
        samples begin. What is random about a sample is drawn step by step."""
        first = at = 0
        while first < len(sizes):
            size = sizes[first]
            most = len(sizes) if self._whole else max(1, MOST_SAMPLES // (LANES * size))
            count = 1
            while not augments and count < most and sizes[first + count : first + count + 1] == [size]:
                count += 1
            yield first, count, at
            first, at = first + count, at + count * size

    def _batches(
        self, positions: np.ndarray, clients: int, count: int, steps: Tensor, augment: Augment
    ) -> Batches:
        """The samples of some steps of groups of sixteen, [lanes of all groups, samples of all steps], of which as
        many as there are clients have their own."""
        lanes, samples = positions.shape
        chosen = torch.from_numpy(positions)
        if self._whole:
            x, target = self._whole
        else:
            x, target = self.inputs(self.inputs.federation.train, chosen[:clients].reshape(-1), augment or None)
            own = torch.arange(lanes).clamp_(max=clients - 1)
            chosen = own[:, None] * samples + torch.arange(samples)
        rows = chosen.view(lanes // LANES, LANES, count, samples // count).permute(0, 2, 3, 1)
        return Batches(x, target, rows, steps)


def samples_as_they_lie(inputs: Inputs) -> tuple[Tensor, Tensor] | None:
    """All samples, a row each, if kernels can read them where they are: plain features, or the bytes of images
    that are always looked at in one way."""
    x, target = inputs.federation.train.whole()
    transform = inputs.federation.transform
    plain = isinstance(transform, Plain) and x.dtype == torch.float32 and x.ndim == 2
    pixels = isinstance(transform, Images) and not transform.is_random and x.dtype == torch.uint8
    return (x.flatten(1), target) if (plain or pixels) and x.is_contiguous() else None
