"""A cohort's clients by sixteens, a client in each lane, where the algorithm and the objective allow it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedrecall.client.inputs import Inputs
from fedrecall.client.lanes.clients import Batches, LanesClients
from fedrecall.client.lanes.kernels.ir import LANES
from fedrecall.client.lanes.lowering import Lowering
from fedrecall.client.plan import Plan
from fedrecall.data.transform import Images, Plain
from fedrecall.recipe.settings import Local
from fedrecall.vector import Tensors

MOST_SAMPLES = 1024  # that are made ready at a time: some megabytes of images

Augment = list[torch.Generator]


class LanesCohort:
    """Trains clients by kernels, sixteen at a time. One thread at a time."""

    def __init__(self, lowering: Lowering, local: Local, inputs: Inputs) -> None:
        self._kernels, self.inputs = LanesClients(lowering, local), inputs
        self._parameters, self._bytes = lowering.chain.parameters, self._kernels.reads_bytes
        self._whole = stored_samples(inputs, reads_bytes=self._bytes)

    def train(
        self, plan: Plan, start: Tensor, client: Tensors, lr: float, augment: Augment
    ) -> tuple[list[Tensor], list[float], Tensor]:
        """The clients' models, sixteen in a block [clients, parameters] which is a transposed view; the mean loss
        over each one's steps; and the sum of the models with their weights. `start` is one vector for all, or one
        each."""
        models, losses, total = list[Tensor](), list[float](), torch.zeros(self._parameters)
        # Where samples are used as they lie, all clients are made ready at once.
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
        self, plan: Plan, start: Tensor, client: Tensors, lr: float, augment: Augment, total: Tensor
    ) -> tuple[Tensor, list[float]]:
        """Models [groups of sixteen, 16, parameters] and the clients' mean losses after all steps. To `total` the
        models are added with their weights."""
        clients, kernels = len(plan.steps), self._kernels
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
        models = w[:, : self._parameters].transpose(1, 2)
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
        read = self.inputs.stored if self._bytes else self.inputs
        x, target = read(self.inputs.federation.train, chosen[:clients].reshape(-1), augment or None)
        own = torch.arange(len(chosen)).clamp_(max=clients - 1)
        rows = own[:, None] * chosen.shape[1] + torch.arange(chosen.shape[1])
        return Batches(x, target.long(), rows, size, steps, begun)


def stored_samples(inputs: Inputs, *, reads_bytes: bool) -> tuple[Tensor, Tensor] | None:
    """Return all samples, a row each, if kernels can read them where they are: plain features, or the bytes of
    images that are always looked at in one way."""
    x, target = inputs.federation.train.whole()
    transform = inputs.federation.transform
    plain = isinstance(transform, Plain) and x.dtype == torch.float32 and x.ndim == 2
    pixels = reads_bytes and isinstance(transform, Images) and not transform.is_random
    return (x.flatten(1), target.long()) if (plain or pixels) and x.is_contiguous() else None
