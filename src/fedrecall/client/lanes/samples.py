"""A step with a sample in each lane, all of it by kernels but losses that only torch has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedrecall.client.lanes.jit import Cpu, compiled, host
from fedrecall.client.lanes.kernels.entry import pixel_table
from fedrecall.client.lanes.kernels.ir import FLOAT, LANES
from fedrecall.client.lanes.kernels.layers import Pixels
from fedrecall.client.lanes.kernels.program import Place
from fedrecall.client.lanes.kernels.steps import SamplesProgram
from fedrecall.client.lanes.lowering import Lowering
from fedrecall.client.lanes.memory import scratch
from fedrecall.client.step import Compared
from fedrecall.objectives.base import Objective
from fedrecall.recipe.settings import Local
from fedrecall.vector import FlatModel, Tensors


class LanesStep:
    """The loss and the gradient of batches of up to `local.batch_size` samples."""

    def __init__(
        self, lowering: Lowering, flat: FlatModel, objective: Objective, local: Local, cpu: Cpu | None = None
    ) -> None:
        cpu = cpu or host()
        self._flat, self._objective, self._local = flat, objective, local
        self.reads_bytes, self._own_loss = lowering.pixels is not None, lowering.own_loss
        units = -(-local.batch_size // LANES)
        self._program = program = SamplesProgram(
            lowering.chain, units, cpu.machine, local.momentum, local.weight_decay, pixels=self.reads_bytes
        )
        self._scratch = scratch(program)
        code = compiled(program.text, cpu)
        self._forward, self._backward = code.function(program.forward), code.function(program.backward)
        self._step, self._decay = code.function(program.step), code.function(program.decay)
        self._descend = code.function(program.descend)
        self._width = width = units * LANES
        self._features = self._view(program.at_features, program.chain.features)
        self._logits = self._view(program.at_logits, program.chain.outputs)
        self._gradient = self._view(program.at_logits_gradient, program.chain.outputs)
        self._samples = 0  # of the batch before
        self._rows = torch.zeros(width + LANES, dtype=torch.long)
        self.read_pixels(lowering.pixels)
        self._offset, self._loss = torch.zeros(program.chain.outputs, LANES), torch.zeros(())
        self._labels, self._scale = torch.zeros(width, dtype=torch.int32), torch.zeros(width)
        self._client: Tensors = {}

    def _view(self, place: Place, rows: int) -> Tensor:
        return self._scratch[place.at // FLOAT :][: rows * self._width].view(rows, self._width)

    def read_pixels(self, pixels: Pixels | None) -> None:
        """Set by which numbers bytes become floats."""
        self._pixels = torch.tensor(pixel_table(pixels) if pixels else [0.0])

    def begin_client(self, client: Tensors) -> None:
        """Take the tensors that the objective has prepared for the client whose steps follow."""
        self._client = client
        if self._own_loss:
            offset = client.get("log_weight")
            self._offset.zero_() if offset is None else self._offset.copy_(offset[:, None])

    def __call__(self, x: Tensor, target: Tensor, compared: Compared) -> Tensor:
        """Fill the model's gradient; return the loss, which is good until the next step."""
        if not self._own_loss:
            return self._with_torch_loss(x, target, compared)
        given = self._begin_batch(x)
        samples = len(x)
        self._labels[:samples] = target
        self._step(
            *given, self._flat.g.data_ptr(), self._offset.data_ptr(), self._labels.data_ptr(),
            self._scale.data_ptr(), self._loss.data_ptr(),
        )  # fmt: skip
        return self._loss

    def _with_torch_loss(self, x: Tensor, target: Tensor, compared: Compared) -> Tensor:
        z = self.logits(x).requires_grad_()
        loss = self._objective(z, target, self._client, compared.teacher)
        (gradient,) = torch.autograd.grad(loss, [z])
        self.backward(gradient)
        return loss.detach()

    def backward(self, gradient: Tensor) -> None:
        """Fill the model's gradient from that of the logits of the last batch."""
        samples, flat = len(gradient), self._flat
        self._gradient[:, :samples].copy_(gradient.t())
        self._backward(flat.w.data_ptr(), flat.g.data_ptr(), self._scratch.data_ptr(), self._chunks(samples))

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of at most as many samples as a step has."""
        self._forward(*self._begin_batch(x))
        return self._logits[:, : len(x)].t().contiguous()

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits of any number of samples."""
        return torch.cat([self.logits(part) for part in torch.split(x, self._local.batch_size)])

    def _chunks(self, samples: int) -> int:
        return -(-samples // (self._program.kit.chunk * LANES))

    def _begin_batch(self, x: Tensor) -> list[Any]:
        """Return the arguments that every program begins with."""
        samples, chunks = len(x), self._chunks(len(x))
        if samples != self._samples:
            self._begin_batches_of(samples, chunks * self._program.kit.chunk * LANES)
        # Bytes are channels last as they are stored.
        last = x.ndim == 4 and not self.reads_bytes
        x = self._x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        tensors = (self._flat.w, x, self._pixels, self._rows, self._scratch)
        return [*[tensor.data_ptr() for tensor in tensors], chunks]

    def _begin_batches_of(self, samples: int, used: int) -> None:
        """Lanes without a sample of their own repeat the last one, and count nothing. What other batches have left
        in those that are not used must not be met again: it may not be finite."""
        torch.arange(len(self._rows), out=self._rows).clamp_(max=samples - 1)
        self._gradient[:, samples:].zero_()
        self._features[:, used:].zero_()
        self._scale.zero_()[:samples] = 1 / samples
        self._samples = samples

    def optimiser(self, lr: float) -> LanesSGD:
        return LanesSGD(self, lr)


class LanesSGD:
    """SGD on the model's flat vectors by kernels: a product and a sum are rounded once, on every machine."""

    def __init__(self, step: LanesStep, lr: float) -> None:
        self._step, self._decays = step, step._local.weight_decay > 0
        self._rate = torch.tensor([-lr])
        self._velocity = torch.zeros_like(step._flat.w) if step._local.momentum else None

    def decay(self, w: Tensor, g: Tensor) -> None:
        if self._decays:
            self._step._decay(w.data_ptr(), g.data_ptr())

    def step(self, w: Tensor, g: Tensor) -> None:
        velocity = None if self._velocity is None else self._velocity.data_ptr()
        self._step._descend(w.data_ptr(), g.data_ptr(), velocity, self._rate.data_ptr())
