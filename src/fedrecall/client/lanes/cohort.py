"""Trains a cohort in groups of sixteen, one client per lane, if algorithm and objective allow it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedrecall.client.batch_loader import BatchLoader
from fedrecall.client.lanes.clients import Batches, LanesClients
from fedrecall.client.lanes.kernels.ir import LANES
from fedrecall.client.lanes.lowering import Lowering
from fedrecall.client.plan import StepPlan
from fedrecall.core.vector import Tensors
from fedrecall.data.transform import Images, Plain
from fedrecall.recipe.settings import Local

MOST_SAMPLES = 1024  # prepared at a time: some megabytes of images

Augment = list[torch.Generator]


class LanesCohort:
    """Trains clients by kernels, sixteen at a time. Not thread-safe."""

    def __init__(self, lowering: Lowering, local: Local, inputs: BatchLoader) -> None:
        self._kernels, self.inputs = LanesClients(lowering, local), inputs
        self._parameters, self._bytes = lowering.chain.parameters, self._kernels.reads_bytes
        self._whole = stored_samples(inputs, reads_bytes=self._bytes)

    def train(
        self, plan: StepPlan, start: Tensor, client: Tensors, lr: float, augment: Augment
    ) -> tuple[list[Tensor], list[float], Tensor]:
        """Return the models, each client's mean loss, and the weighted sum of the models. A block of models is a
        transposed view [clients, parameters] of up to sixteen. `start` is one vector for all, or one each."""
        models, losses, total = list[Tensor](), list[float](), torch.zeros(self._parameters)
        # Samples that kernels read in place need no preparation, so all clients train at once.
        size = len(plan.steps) if self._whole else LANES
        for first in range(0, len(plan.steps), size):
            some = slice(first, first + size)
            own = start if start.ndim == 1 else start[some]
            prepared = {name: tensor[some] for name, tensor in client.items()}
            w, mean = self._together(plan.part(some), own, prepared, lr, augment[some], total)
            models += w.unbind()
            losses += mean
        models[-1] = models[-1][: len(losses) - LANES * (len(models) - 1)]
        return models, losses, total

    def _together(
        self, plan: StepPlan, start: Tensor, client: Tensors, lr: float, augment: Augment, total: Tensor
    ) -> tuple[Tensor, list[float]]:
        """Return models [groups, 16, parameters] and mean losses; add the weighted models to `total`."""
        clients, kernels = len(plan.steps), self._kernels
        lanes = np.arange(-(-clients // LANES) * LANES).clip(max=clients - 1)  # padding repeats the last client
        losses, shares, whole = torch.zeros(3, len(lanes) // LANES, LANES)
        steps = whole.view(torch.int32)
        steps.numpy().reshape(-1)[:clients] = plan.steps  # padding takes no steps and has no weight
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
        models = w[:, : self._parameters].transpose(1, 2)
        return models, (losses.numpy().reshape(-1)[:clients] / np.maximum(plan.steps, 1)).tolist()

    def _parts(self, sizes: list[int], *, augments: bool) -> Iterator[tuple[int, int, int]]:
        """Yield runs of steps of one batch size to prepare together: first step, number of steps, first sample.
        Augmented steps are prepared one by one."""
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
        """Return the batches of some steps; `positions` is [lanes of all groups, samples of all steps]."""
        chosen = torch.from_numpy(positions)
        if self._whole:
            return Batches(*self._whole, chosen, size, steps, begun)
        clients = len(augment) or len(chosen)
        read = self.inputs.stored if self._bytes else self.inputs
        x, target = read(self.inputs.federation.train, chosen[:clients].reshape(-1), augment or None)
        own = torch.arange(len(chosen)).clamp_(max=clients - 1)
        rows = own[:, None] * chosen.shape[1] + torch.arange(chosen.shape[1])
        return Batches(x, target.long(), rows, size, steps, begun)


def stored_samples(inputs: BatchLoader, *, reads_bytes: bool) -> tuple[Tensor, Tensor] | None:
    """Return all samples, one row each, if kernels can read them in place: features, or unaugmented bytes."""
    x, target = inputs.federation.train.whole()
    transform = inputs.federation.transform
    plain = isinstance(transform, Plain) and x.dtype == torch.float32 and x.ndim == 2
    pixels = reads_bytes and isinstance(transform, Images) and not transform.is_random
    return (x.flatten(1), target.long()) if (plain or pixels) and x.is_contiguous() else None
