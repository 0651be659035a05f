"""Checks kernels against float64 before round 1, on numbers that depend on nothing but the model.

Weights are 0, 1 and -1, at most two of them non-zero per output; samples are small integers; biases are odd
multiples of 1/2, 1/4, .., a smaller power in each layer, so that no ReLU meets a zero. Before a mean over windows
whose size is no power of two, samples and biases are multiples of the size's odd part. All sums of such numbers
are exact in float32 as long as they stay below 2^24 steps of the smallest power: rounding decides no maximum and
no sign, whatever the order of summation. The remaining differences are the rounding of larger sums, of gradients
of means, and of exponentials, which the first of the two cases avoids.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedrecall.client.batch import Batch
from fedrecall.client.lanes.clients import Batches, LanesClients
from fedrecall.client.lanes.kernels.ir import LANES
from fedrecall.client.lanes.kernels.layers import Chain, Convolution, Pixels
from fedrecall.client.lanes.lowering import Lowering
from fedrecall.client.lanes.model_reader import UnsupportedError
from fedrecall.client.lanes.samples import LanesStep
from fedrecall.core.vector import FlatModel, Tensors
from fedrecall.objectives.base import Objective
from fedrecall.recipe.settings import Local

NEAR = 2.0**-18  # tolerance relative to the largest entry: some rounding errors of 2^-24
MOST_SAMPLES = 32


LR = 0.5


def check_samples(lowering: Lowering, local: Local, flat: FlatModel, objective: Objective) -> None:
    """Raise `UnsupportedError` if a step with one sample per lane differs from float64."""
    step, before = LanesStep(lowering, flat, objective, local), flat.w.clone()
    for case in cases(lowering, local, flat):
        step.read_pixels(case.pixels)
        step.begin_client(LR, {"log_weight": case.offset})
        flat.w.copy_(case.w)
        logits = step.predict(case.x)
        if lowering.own_loss:
            check_close(step(Batch(case.x, case.target))[None], case.loss[None])
        else:
            step.backward(case.logits_gradient)
        check_close(logits, case.logits)
        check_close(flat.g, case.gradient)
        for _ in range(2):  # along the same gradient
            flat.g.copy_(case.gradient)
            step.decay()
            step.descend()
        check_close(flat.w, case.after_two_steps(local))
    flat.w.copy_(before)
    flat.g.zero_()


def check_clients(lowering: Lowering, local: Local, flat: FlatModel) -> None:
    """Raise `UnsupportedError` if a step of the same client in every lane differs from float64."""
    kernels = LanesClients(lowering, local)
    for case in cases(lowering, local, flat):
        kernels.read_pixels(case.pixels)
        w, losses, size = kernels.weights(1), torch.zeros(1, LANES), len(case.x)
        rows, steps = torch.arange(size).expand(LANES, -1).contiguous(), torch.ones(1, LANES, dtype=torch.int32)
        offsets = kernels.offsets(case.offset.expand(LANES, -1))
        x = case.x.flatten(1) if kernels.reads_bytes else case.x
        kernels.run(w, Batches(x, case.target, rows, size, steps), offsets, losses, 1.0, start=case.w)
        decayed = case.gradient + np.float32(local.weight_decay).item() * case.w.double()
        rounding = 2.0**-24 * float(case.w.abs().max())  # of the new weights, which may hardly differ from the old ones
        for lane in range(LANES):
            check_close(case.w.double() - w[0, : len(case.w), lane], decayed, rounding)
            check_close(losses[0, lane][None], case.loss[None])


def cases(lowering: Lowering, local: Local, flat: FlatModel) -> Iterator[Case]:
    """Yield a case with an exact softmax, which tests all but exponentials, and one with an inexact softmax."""
    for finite in (False, True):
        yield Case(flat, lowering, local, finite=finite)


class Case:
    """A batch of integers, and the model's results on it in float64."""

    def __init__(self, flat: FlatModel, lowering: Lowering, local: Local, *, finite: bool) -> None:
        random, chain = np.random.default_rng(0), lowering.chain
        samples = 2 ** int(math.log2(local.batch_size))  # a power of two, so that 1 / samples is exact
        samples, classes = min(samples, MOST_SAMPLES), chain.outputs
        self.w, (factor, of_biases) = torch.zeros_like(flat.w), whole_means(chain)
        for slot, values in zip(flat.parameter_slots, whole_weights(flat, random)):
            slot.view(self.w).copy_(values * of_biases.get(slot.offset, 1))
        stored = torch.from_numpy(random.integers(0, 4, (samples, *chain.sample)))
        self.target = torch.from_numpy(random.integers(0, classes, samples))
        self.offset = torch.from_numpy(random.integers(-3, 1, classes)).float()
        if not finite:
            self.offset = torch.full((classes,), -torch.inf)
            self.offset[int(random.integers(0, classes))] = 0.0
        parameters: Tensors = {s.name: s.view(self.w).double().requires_grad_() for s in flat.parameter_slots}
        try:
            logits = functional_call(flat.module, parameters, (factor * stored.double(),))
        except RuntimeError:
            raise UnsupportedError("a forward that cannot be computed in float64, to compare with") from None
        self.logits, labels = logits.detach(), nn.functional.one_hot(self.target, classes).double()
        shifted = self.logits + self.offset
        self.loss = (shifted.logsumexp(1) - (self.logits * labels).sum(1)).mean()
        self.logits_gradient = (shifted.softmax(1) - labels) / samples
        self.gradient = torch.zeros(len(flat.w), dtype=torch.float64)
        gradients = torch.autograd.grad(logits, list(parameters.values()), self.logits_gradient)
        for slot, gradient in zip(flat.parameter_slots, gradients):
            slot.view(self.gradient).copy_(gradient)
        self.x, self.pixels = factor * stored.float(), lowering.pixels
        if lowering.pixels:  # the code does not depend on scale and shift
            channels = len(lowering.pixels.scale)
            self.pixels = Pixels((float(factor),) * channels, (0.0,) * channels)
            self.x = stored.permute(0, 2, 3, 1).to(torch.uint8).contiguous()

    def after_two_steps(self, local: Local) -> Tensor:
        """Return the weights after two steps along the gradient, at rate `LR`."""
        w, velocity = self.w.double(), torch.zeros_like(self.gradient)
        for _ in range(2):
            velocity = local.momentum * velocity + self.gradient + local.weight_decay * w
            w = w - LR * velocity
        return w


def check_close(ours: Tensor, exact: Tensor, rounding: float = 0.0) -> None:
    """Raise `UnsupportedError` if the two differ by more than `NEAR` and a rounding error."""
    if not bool(((ours.double() - exact).abs() <= NEAR * exact.abs().max() + rounding).all()):
        raise UnsupportedError("this model that computes what float64 does on this processor")


def whole_means(chain: Chain) -> tuple[int, dict[int, int]]:
    """Return the factors of samples, and of biases by offset, that make all means exact."""
    factor, of_biases = 1, dict[int, int]()
    for layer in reversed(chain.spatial):
        if isinstance(layer, Convolution):
            if layer.bias is not None:
                of_biases[layer.bias] = factor
        elif not layer.largest:
            window = math.prod(layer.kernel)
            factor *= window // (window & -window)
    return factor, of_biases


def whole_weights(flat: FlatModel, random: np.random.Generator) -> Iterator[Tensor]:
    """Yield the test values of each parameter."""
    power = 1.0
    for slot in flat.parameter_slots:
        values = np.zeros(slot.shape)
        if len(slot.shape) == 1:
            power /= 2
            values += power * (2 * random.integers(-1, 1, slot.shape) + 1)
        else:
            rows = values.reshape(len(values), -1)
            for row in rows:
                row[random.integers(0, len(row), 2)] = random.choice([-1.0, 1.0], 2)
        yield torch.from_numpy(values)
