"""A cohort's clients by sixteens, a client in each lane, where the algorithm and the objective allow it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrecall.client.graph import UntraceableError
from fedrecall.client.inputs import Inputs
from fedrecall.client.lanes.clients import Batches, LanesClients
from fedrecall.client.lanes.ir import LANES
from fedrecall.client.step import NOTHING, TOLERANCES, Step, is_near
from fedrecall.client.work import Job
from fedrecall.data.transform import Generators, Plain
from fedrecall.objectives.cross_entropy import CrossEntropy
from fedrecall.objectives.wsm import WSM
from fedrecall.vector import Tensors

MOST_SAMPLES = 1024  # that are made ready at a time: some megabytes of images


@dataclass(frozen=True)
class Sixteen:
    """What some of a cohort's clients came to."""

    places: np.ndarray  # in the cohort
    w: Tensor  # [clients, parameters], a transposed view
    loss: Tensor  # the sum over each client's steps


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

    def train(
        self, positions: np.ndarray, sizes: list[int], steps: np.ndarray, start: Tensor, client: Tensors,
        lr: float, augment: list[torch.Generator],
    ) -> Iterator[Sixteen]:  # fmt: skip
        """Clients with as many steps together; `start` is one vector for all, or one each."""
        offset = client.get("log_weight")
        by_steps = np.argsort(-steps, kind="stable")
        for first in range(0, len(by_steps), LANES):
            places = by_steps[first : first + LANES]
            own = [augment[i] for i in places] if augment else []
            yield self._sixteen(
                places, positions[places], sizes[: int(steps[places].max())], torch.from_numpy(steps[places]),
                start if start.ndim == 1 else start[places], None if offset is None else offset[places], lr, own,
            )  # fmt: skip

    def _sixteen(
        self, places: np.ndarray, positions: np.ndarray, sizes: list[int], steps: Tensor, start: Tensor,
        offset: Tensor | None, lr: float, augment: list[torch.Generator],
    ) -> Sixteen:  # fmt: skip
        kernels = self._kernels
        assert kernels is not None
        w, offsets = kernels.start(start), kernels.offsets(offset, len(places))
        total = torch.zeros(len(places))
        for first, count, at in self._parts(sizes, len(places), bool(augment)):
            chosen = positions[:, at : at + count * sizes[first]]
            batches = self._batches(chosen, count, (steps - first).clamp(min=0), augment)
            total += kernels.run(w, batches, offsets, lr)
        count = kernels.program.chain.parameters
        return Sixteen(places, w[:count].t()[: len(places)], total)

    def _parts(self, sizes: list[int], clients: int, augments: bool) -> Iterator[tuple[int, int, int]]:
        """Steps of one batch size, as many as are made ready together: the first, how many, and where their
        samples begin. What is random about a sample is drawn step by step."""
        first = at = 0
        direct = self._whole() is not None
        while first < len(sizes):
            most = len(sizes) if direct else max(1, MOST_SAMPLES // (clients * sizes[first]))
            count = 1
            while not augments and count < most and sizes[first + count : first + count + 1] == [sizes[first]]:
                count += 1
            yield first, count, at
            first, at = first + count, at + count * sizes[first]

    def _whole(self) -> tuple[Tensor, Tensor] | None:
        """All samples where they lie, if a model takes them as they are."""
        if not isinstance(self.inputs.federation.transform, Plain):
            return None
        x, target = self.inputs.federation.train.whole()
        plain = x.dtype == torch.float32 and x.ndim == 2 and x.is_contiguous()
        return (x, target) if plain else None

    def _batches(self, positions: np.ndarray, count: int, steps: Tensor, augment: Generators) -> Batches:
        """The samples of some steps, [clients, samples]."""
        clients, samples = positions.shape
        chosen = torch.from_numpy(positions)
        whole = self._whole()
        if whole is None:
            x, target = self.inputs(self.inputs.federation.train, chosen.reshape(-1), augment or None)
            chosen = torch.arange(clients * samples).view(clients, samples)
        else:
            x, target = whole
        return Batches(x, target, chosen.view(clients, count, samples // count).permute(1, 2, 0), steps)

    def prepare(self, positions: np.ndarray, size: int, start: Tensor, client: Tensors) -> None:
        """Kernels for this model, unless there are some; an `UntraceableError` says why there are none."""
        if self._kernels is not None:
            return
        flat, lr = self.step.flat, 1.0
        batches = self._batches(positions[:1, :size], 1, torch.ones(1), None)
        x, target = (tensor[batches.rows.view(-1)] for tensor in (batches.x, batches.target))
        kernels = LanesClients(flat, self.job.local, x)
        vector = start if start.ndim == 1 else start[0]
        flat.w.copy_(vector)
        own = {name: tensor[0] for name, tensor in client.items()}
        loss = self.step._eager(x, target, own, NOTHING)
        moved = -(flat.g + self.job.local.weight_decay * vector)
        w = kernels.start(vector)
        offset = client.get("log_weight")
        found = kernels.run(w, batches, kernels.offsets(None if offset is None else offset[:1], 1), lr)
        pairs = ((loss, found[0]), (moved, w[: len(vector), 0] - vector))
        if not all(is_near(ours.double(), theirs.double(), TOLERANCES["lanes"]) for ours, theirs in pairs):
            raise UntraceableError("its first step differs from the eager one")
        self._kernels = kernels

    def forget(self) -> None:
        """The model may do something else now."""
        self._kernels = None
