"""A cohort's clients by sixteens, a client in each lane, where the algorithm and the objective allow it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedrecall.client.graph import UntraceableError
from fedrecall.client.inputs import Inputs
from fedrecall.client.lanes.clients import Batches, LanesClients
from fedrecall.client.lanes.kernels.ir import LANES
from fedrecall.client.lanes.kernels.layers import Pixels
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
        flat, size = self.step.flat, plan.sizes[0]
        first = np.repeat(plan.positions[:1, :size], LANES, axis=0)
        x, target = self.inputs(self.inputs.federation.train, torch.from_numpy(first[0]))
        kernels = LanesClients(flat, self.job.local, x, pixels=self._pixels)
        vector = start if start.ndim == 1 else start[0]
        flat.w.copy_(vector)
        loss = self.step.eager(x, target, {name: tensor[0] for name, tensor in client.items()}, NOTHING)
        moved = -(flat.g + self.job.local.weight_decay * vector)
        w, offset = kernels.weights(1), client.get("log_weight")
        offsets = kernels.offsets(None if offset is None else offset[:1].expand(LANES, -1))
        steps, found = torch.ones(1, LANES, dtype=torch.int32), torch.zeros(1, LANES)
        kernels.run(w, self._batches(first, size, steps, 0, []), offsets, found, 1.0, start=vector)
        pairs = ((loss, found[0, 0]), (moved, w[0, : len(vector), 0] - vector))
        if not all(is_near(ours.double(), theirs.double(), TOLERANCES["lanes"]) for ours, theirs in pairs):
            raise UntraceableError("its first step differs from the eager one")
        self._kernels = kernels

    def forget(self) -> None:
        """The model may do something else now."""
        self._kernels = None

    def train(
        self, plan: Plan, start: Tensor, client: Tensors, lr: float, augment: Augment
    ) -> tuple[list[Tensor], list[float], Tensor]:
        """The clients' models, sixteen in a block [clients, parameters] which is a transposed view; the mean loss
        over each one's steps; and the sum of the models with their weights. `start` is one vector for all, or one
        each."""
        kernels = self._kernels
        assert kernels is not None
        models, losses, total = list[Tensor](), list[float](), torch.zeros_like(self.step.flat.w)
        # Where samples are used as they lie, all clients are made ready at once.
        size = len(plan.steps) if self._whole else LANES
        for first in range(0, len(plan.steps), size):
            some = slice(first, first + size)
            own = start if start.ndim == 1 else start[some]
            prepared = {name: tensor[some] for name, tensor in client.items()}
            w, mean = self._together(kernels, plan.part(some), own, prepared, lr, augment[some], total)
            models += w.unbind()
            losses += mean
        models[-1] = models[-1][: len(losses) - LANES * (len(models) - 1)]
        return models, losses, total

    def _together(
        self, kernels: LanesClients, plan: Plan, start: Tensor, client: Tensors, lr: float, augment: Augment,
        total: Tensor,
    ) -> tuple[Tensor, list[float]]:  # fmt: skip
        """Models [groups of sixteen, 16, parameters] and the clients' mean losses after all steps. To `total` the
        models are added with their weights."""
        clients = len(plan.steps)
        lanes = np.arange(-(-clients // LANES) * LANES).clip(max=clients - 1)  # the last ones repeat a client
        losses, shares, whole = torch.zeros(3, len(lanes) // LANES, LANES)
        steps = whole.view(torch.int32)
        steps.numpy().reshape(-1)[:clients] = plan.steps  # and take no steps, and count nothing
        shares.numpy().reshape(-1)[:clients] = plan.weights
        positions = plan.positions if len(lanes) == clients else plan.positions[lanes]
        w = kernels.weights(len(steps), None if start.ndim == 1 else start[lanes])
        offsets = kernels.offsets(client["log_weight"][lanes] if "log_weight" in client else None, len(steps))
        parts = list(self._parts(plan.sizes, augments=bool(augment)))
        for part in parts:
            first, count, at = part
            chosen = positions[:, at : at + count * plan.sizes[first]]
            batches = self._batches(chosen, plan.sizes[first], steps, first, augment)
            kernels.run(
                w, batches, offsets, losses, lr,
                start=start if start.ndim == 1 and part is parts[0] else None,
                shares=shares if part is parts[-1] else None, sums=total,
            )  # fmt: skip
        models = w[:, : self.step.flat.w.numel()].transpose(1, 2)
        return models, (losses.numpy().reshape(-1)[:clients] / np.maximum(plan.steps, 1)).tolist()

    def _parts(self, sizes: list[int], *, augments: bool) -> Iterator[tuple[int, int, int]]:
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

    def _batches(self, positions: np.ndarray, size: int, steps: Tensor, begun: int, augment: Augment) -> Batches:
        """The samples of some steps, [lanes of all groups, samples of all steps]."""
        chosen = torch.from_numpy(positions)
        if self._whole:
            return Batches(*self._whole, chosen, size, steps, begun)
        clients = len(augment) or len(chosen)
        x, target = self.inputs(self.inputs.federation.train, chosen[:clients].reshape(-1), augment or None)
        own = torch.arange(len(chosen)).clamp_(max=clients - 1)
        rows = own[:, None] * chosen.shape[1] + torch.arange(chosen.shape[1])
        return Batches(x, target.long(), rows, size, steps, begun)


def samples_as_they_lie(inputs: Inputs) -> tuple[Tensor, Tensor] | None:
    """All samples, a row each, if kernels can read them where they are: plain features, or the bytes of images
    that are always looked at in one way."""
    x, target = inputs.federation.train.whole()
    transform = inputs.federation.transform
    plain = isinstance(transform, Plain) and x.dtype == torch.float32 and x.ndim == 2
    pixels = isinstance(transform, Images) and not transform.is_random and x.dtype == torch.uint8
    return (x.flatten(1), target.long()) if (plain or pixels) and x.is_contiguous() else None
