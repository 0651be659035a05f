"""All steps of sixteen clients by one call, a client in each lane: loss and SGD are part of the kernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from fedrecall.client.lanes.chain import chain_of
from fedrecall.client.lanes.ir import FLOAT, LANES
from fedrecall.client.lanes.jit import Code, Cpu, host
from fedrecall.client.lanes.layers import Pixels
from fedrecall.client.lanes.memory import empty, scratch, zeros
from fedrecall.client.lanes.program import Program, Update
from fedrecall.recipe.settings import Local
from fedrecall.vector import FlatModel


@dataclass(frozen=True)
class Batches:
    """Some steps of groups of sixteen clients: the samples of all, and which of them each client takes when."""

    x: Tensor  # [samples, ..], of bytes where the kernels read pixels
    target: Tensor  # [samples]
    rows: Tensor  # [groups, steps, samples of a step, 16], places in x and target
    steps: Tensor  # [groups, 16]: how many of these steps each client takes; none in a lane that repeats another


class LanesClients:
    """Trains clients with cross-entropy of the logits plus an offset for each client and class."""

    def __init__(
        self, flat: FlatModel, local: Local, x: Tensor, cpu: Cpu | None = None, pixels: Pixels | None = None
    ) -> None:
        cpu = cpu or host()
        self._momentum = local.momentum
        update = Update(local.momentum, local.weight_decay)
        self.program = program = Program(chain_of(flat, x), local.batch_size, cpu.machine, update, pixels)
        self._scratch = scratch(program)
        self._code = Code(program.text, cpu)
        address, number = ctypes.c_void_p, ctypes.c_int64
        self._run = self._code.function("run_groups", *[address] * 9, number, number, address, number)
        width = program.units * LANES
        self._features = self._scratch[program.at_h[0] // FLOAT :][: program.chain.features * width].view(
            -1, width
        )
        self._used = 0

    def start(self, w: Tensor, groups: int) -> Tensor:
        """[groups, parameters, 16], and room for momentum behind them, from one vector or [groups, 16, ..]."""
        count = self.program.chain.parameters
        found = empty(groups, count * (2 if self._momentum else 1), LANES)
        found[:, count:].zero_()
        found[:, :count].copy_(w[:, None] if w.ndim == 1 else w.transpose(1, 2))
        return found

    def offsets(self, offset: Tensor | None, groups: int) -> Tensor:
        """[groups, classes, 16], from [groups, 16, classes] or none."""
        found = zeros(groups, self.program.chain.outputs, LANES)
        return found if offset is None else found.copy_(offset.transpose(1, 2))

    def run(self, w: Tensor, batches: Batches, offsets: Tensor, lr: float) -> Tensor:
        """Take these steps, in place. Returns the sum of each client's losses over its own steps, [groups, 16]."""
        groups, steps, samples, _ = batches.rows.shape
        units, chunk = self.program.units, self.program.kit.chunk
        chunks = -(-samples // chunk)
        self._forget_samples_behind(chunks * chunk)
        rows = batches.rows
        if samples < units:  # the last one repeated, to count nothing
            rows = rows.index_select(2, torch.arange(units).clamp_(max=samples - 1))
        rows = rows.contiguous()
        labels, found = empty(*rows.shape, dtype=torch.int32), empty(groups, steps, units, 2, LANES)
        labels.copy_(batches.target.take(rows))
        active = torch.arange(steps)[:, None] < batches.steps[:, None]
        rate = empty(groups, steps, LANES).copy_(torch.where(active, -lr, 0.0))
        scale = zeros(units, LANES)
        scale[:samples] = 1 / samples
        x = batches.x.contiguous(memory_format=torch.channels_last) if batches.x.ndim == 4 else batches.x
        counts = batches.steps.amax(1).clamp(max=steps)
        tensors = (w, x, rows, labels, scale, rate, offsets, found, self._scratch)
        busy = int(counts.count_nonzero())  # groups that take more steps come first
        if busy:
            self._run(*[tensor.data_ptr() for tensor in tensors], steps, chunks, counts.data_ptr(), busy)
        losses = (found[:, :, :samples, 0].log() + found[:, :, :samples, 1]).mean(2)
        return torch.where(active, losses, 0.0).sum(1)

    def _forget_samples_behind(self, used: int) -> None:
        """What larger batches have left there may not be finite."""
        if used != self._used:
            self._features[:, used * LANES :].zero_()
            self._used = used
