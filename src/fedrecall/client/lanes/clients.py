"""All steps of up to sixteen clients by one call, a client in each lane: loss and SGD are part of the kernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from fedrecall.client.lanes.chain import chain_of
from fedrecall.client.lanes.ir import FLOAT, LANES
from fedrecall.client.lanes.jit import Code, Cpu, host
from fedrecall.client.lanes.memory import zeros
from fedrecall.client.lanes.program import Program, Update
from fedrecall.recipe.settings import Local
from fedrecall.vector import FlatModel


@dataclass(frozen=True)
class Batches:
    """Some steps of at most sixteen clients: the samples of all, and which of them each client takes when."""

    x: Tensor  # [samples, ..]
    target: Tensor  # [samples]
    rows: Tensor  # [steps, samples of a step, clients], places in x and target
    steps: Tensor  # [clients]: how many of these steps each takes

    def padded(self, samples: int) -> Tensor:
        """The rows with those of the last sample and the last client repeated, up to `samples` and sixteen."""
        some = torch.arange(samples).clamp_(max=self.rows.shape[1] - 1)
        lanes = torch.arange(LANES).clamp_(max=self.rows.shape[2] - 1)
        return self.rows.index_select(1, some).index_select(2, lanes)


class LanesClients:
    """Trains clients with cross-entropy of the logits plus an offset for each client and class."""

    def __init__(self, flat: FlatModel, local: Local, x: Tensor, cpu: Cpu | None = None) -> None:
        cpu = cpu or host()
        update = Update(local.momentum, local.weight_decay)
        self.program = program = Program(chain_of(flat, x), local.batch_size, cpu.machine, update)
        self._code = Code(program.text, cpu)
        self._run = self._code.function("run", *[ctypes.c_void_p] * 9, *[ctypes.c_int64] * 2)
        self._scratch = zeros(program.scratch_bytes // FLOAT)
        width = program.units * LANES
        self._features = self._scratch[program.at_h[0] // FLOAT :][: program.chain.features * width].view(
            -1, width
        )
        self._used = 0

    def start(self, w: Tensor) -> Tensor:
        """Weights [parameters, lanes], and room for momentum behind them, from one vector or from one each."""
        count = self.program.chain.parameters
        found = zeros(count * (2 if self.program.updates and self.program.updates.momentum else 1), LANES)
        if w.ndim == 1:
            found[:count].copy_(w[:, None])
        else:
            found[:count, : len(w)].copy_(w.t())
            found[:count, len(w) :].copy_(w[-1:].t())
        return found

    def offsets(self, offset: Tensor | None, clients: int) -> Tensor:
        """[classes, lanes], from [clients, classes] or none."""
        found = zeros(self.program.chain.outputs, LANES)
        if offset is not None:
            found[:, :clients].copy_(offset.t())
            found[:, clients:].copy_(offset[-1:].t())
        return found

    def run(self, w: Tensor, batches: Batches, offsets: Tensor, lr: float) -> Tensor:
        """Take these steps, in place. Returns the sum of each client's losses over its own steps."""
        program, (steps, samples, clients) = self.program, batches.rows.shape
        chunk, units = program.kit.chunk, program.units
        chunks = -(-samples // chunk)
        if chunks * chunk != self._used:  # what is left there by larger batches may not be finite
            self._features[:, chunks * chunk * LANES :].zero_()
            self._used = chunks * chunk
        rows = batches.padded(units).contiguous()
        labels = zeros(*rows.shape, dtype=torch.int32)
        labels.copy_(batches.target[rows.view(-1)].view_as(rows))
        scale, rate, found = zeros(*rows.shape), zeros(steps, LANES), zeros(steps, units, 2, LANES)
        scale[:, :samples, :clients] = 1 / samples
        active = torch.arange(steps)[:, None] < batches.steps
        rate[:, :clients] = torch.where(active, -lr, 0.0)
        x = batches.x.contiguous(memory_format=torch.channels_last) if batches.x.ndim == 4 else batches.x
        tensors = (w, x, rows, labels, scale, rate, offsets, found, self._scratch)
        self._run(*(tensor.data_ptr() for tensor in tensors), steps, chunks)
        losses = (found[:, :samples, 0].log() + found[:, :samples, 1]).mean(1)[:, :clients]
        return torch.where(active, losses, 0.0).sum(0)
