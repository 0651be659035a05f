"""A local step with one sample per lane, by kernels except for losses that only torch computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedrecall.client.batch import Batch
from fedrecall.client.lanes.jit import Cpu, compiled, host
from fedrecall.client.lanes.kernels.ir import FLOAT, LANES
from fedrecall.client.lanes.kernels.layers import Pixels
from fedrecall.client.lanes.kernels.program import Place
from fedrecall.client.lanes.kernels.sample_loading import pixel_table
from fedrecall.client.lanes.kernels.steps import SamplesProgram
from fedrecall.client.lanes.lowering import Lowering
from fedrecall.client.lanes.memory import scratch
from fedrecall.core.vector import FlatModel, Tensors
from fedrecall.objectives.base import Objective
from fedrecall.recipe.settings import Local


class LanesStep:
    """Takes steps by kernels, on batches of up to `local.batch_size` samples."""

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
        self._samples = 0  # of the previous batch
        self._rows = torch.zeros(width + LANES, dtype=torch.long)
        self.read_pixels(lowering.pixels)
        self._offset, self._loss = torch.zeros(program.chain.outputs, LANES), torch.zeros(())
        self._labels, self._scale = torch.zeros(width, dtype=torch.int32), torch.zeros(width)
        # SGD uses fused multiply-adds, so that it rounds alike on every machine.
        self._rate, self._decays = torch.zeros(1), local.weight_decay > 0
        self._velocity = torch.zeros_like(flat.w) if local.momentum else None

    def _view(self, place: Place, rows: int) -> Tensor:
        return self._scratch[place.at // FLOAT :][: rows * self._width].view(rows, self._width)

    def read_pixels(self, pixels: Pixels | None) -> None:
        """Set the scale and shift that turn bytes into floats."""
        self._pixels = torch.tensor(pixel_table(pixels) if pixels else [0.0])

    @property
    def moments(self) -> Tensors:
        return {}  # kernels have momentum that starts anew every round, and no other moments

    def begin_client(self, lr: float, client: Tensors, moments: Tensors | None = None) -> None:
        self._rate[0] = -lr
        if self._velocity is not None:
            self._velocity.zero_()
        if self._own_loss:
            offset = client.get("log_weight")
            self._offset.zero_() if offset is None else self._offset.copy_(offset[:, None])

    def __call__(self, batch: Batch) -> Tensor:
        if not self._own_loss:
            return self._with_torch_loss(batch)
        given = self._begin_batch(batch.x)
        self._labels[: len(batch.x)] = batch.target
        self._step(
            *given, self._flat.g.data_ptr(), self._offset.data_ptr(), self._labels.data_ptr(),
            self._scale.data_ptr(), self._loss.data_ptr(),
        )  # fmt: skip
        return self._loss

    def _with_torch_loss(self, batch: Batch) -> Tensor:
        z = self.logits(batch.x).requires_grad_()
        loss = self._objective(z, batch.target, batch.client, batch.teacher)
        (gradient,) = torch.autograd.grad(loss, [z])
        self.backward(gradient)
        return loss.detach()

    def backward(self, gradient: Tensor) -> None:
        """Fill the model's gradient from that of the last batch's logits."""
        samples, flat = len(gradient), self._flat
        self._gradient[:, :samples].copy_(gradient.t())
        self._backward(flat.w.data_ptr(), flat.g.data_ptr(), self._scratch.data_ptr(), self._chunks(samples))

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of at most `local.batch_size` samples."""
        self._forward(*self._begin_batch(x))
        return self._logits[:, : len(x)].t().contiguous()

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        """Return the logits of any number of samples."""
        return torch.cat([self.logits(part) for part in torch.split(x, self._local.batch_size)])

    def _chunks(self, samples: int) -> int:
        return -(-samples // (self._program.kit.chunk * LANES))

    def _begin_batch(self, x: Tensor) -> list[Any]:
        """Return the first arguments of `forward` and `step` for this batch."""
        samples, chunks = len(x), self._chunks(len(x))
        if samples != self._samples:
            self._begin_batches_of(samples, chunks * self._program.kit.chunk * LANES)
        # Stored bytes are channels last already.
        last = x.ndim == 4 and not self.reads_bytes
        x = self._x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        tensors = (self._flat.w, x, self._pixels, self._rows, self._scratch)
        return [*[tensor.data_ptr() for tensor in tensors], chunks]

    def _begin_batches_of(self, samples: int, used: int) -> None:
        """Let spare lanes repeat the last sample with weight zero, and clear what other batches left in unused
        ones, which may not be finite."""
        torch.arange(len(self._rows), out=self._rows).clamp_(max=samples - 1)
        self._gradient[:, samples:].zero_()
        self._features[:, used:].zero_()
        self._scale.zero_()[:samples] = 1 / samples
        self._samples = samples

    def decay(self) -> None:
        if self._decays:
            self._decay(self._flat.w.data_ptr(), self._flat.g.data_ptr())

    def descend(self) -> None:
        flat, velocity = self._flat, None if self._velocity is None else self._velocity.data_ptr()
        self._descend(flat.w.data_ptr(), flat.g.data_ptr(), velocity, self._rate.data_ptr())
