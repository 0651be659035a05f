"""All steps of many clients in one call, one client per lane: loss and SGD are part of the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedrecall.client.lanes.jit import Cpu, compiled, host
from fedrecall.client.lanes.kernels.ir import FLOAT, LANES
from fedrecall.client.lanes.kernels.layers import Pixels
from fedrecall.client.lanes.kernels.sample_loading import pixel_table
from fedrecall.client.lanes.kernels.steps import ClientsProgram
from fedrecall.client.lanes.lowering import Lowering
from fedrecall.client.lanes.memory import scratch
from fedrecall.recipe.settings import Local


@dataclass(frozen=True)
class Batches:
    """Some steps of groups of sixteen clients: all samples, and the rows that each client takes in order."""

    x: Tensor  # [samples, ..], bytes if the kernels read pixels
    target: Tensor  # [samples] int64
    rows: Tensor  # [16 x groups, samples of all these steps], rows of x and target
    size: int  # samples per step
    steps: Tensor  # [groups, 16] int32: each client's total steps; 0 in a lane that repeats another
    begun: int = 0  # steps taken before these


class LanesClients:
    """Trains clients with cross-entropy of the logits plus an offset for each client and class."""

    def __init__(self, lowering: Lowering, local: Local, cpu: Cpu | None = None) -> None:
        cpu, pixels = cpu or host(), lowering.pixels
        self.reads_bytes = pixels is not None
        self.program = program = ClientsProgram(
            lowering.chain, local.batch_size, cpu.machine, local.momentum, local.weight_decay,
            pixels=self.reads_bytes,
        )  # fmt: skip
        self.read_pixels(pixels)
        self._scratch = scratch(program)
        self._run = compiled(program.text, cpu).function(program.run)
        width = program.units * LANES
        features = self._scratch[program.at_features.at // FLOAT :][: program.chain.features * width]
        self._features = features.view(-1, width)
        self._scale, self._size = torch.zeros(program.units, LANES), 0  # of the previous batches
        self._rate = torch.zeros(1)

    def read_pixels(self, pixels: Pixels | None) -> None:
        """Set the scale and shift that turn bytes into floats."""
        self._pixels = torch.tensor(pixel_table(pixels) if pixels else [0.0])

    def weights(self, groups: int, start: Tensor | None = None) -> Tensor:
        """Return memory for [groups, parameters, 16], then momentum; `start` is [16 x groups, parameters]."""
        count = self.program.chain.parameters
        found = torch.empty(groups, count * self.program.vectors, LANES)
        if start is not None:
            found[:, count:].zero_()
            found[:, :count].copy_(start.view(groups, LANES, -1).transpose(1, 2))
        return found

    def offsets(self, offset: Tensor | None, groups: int = 1) -> Tensor:
        """Return [groups, classes, 16], from [16 x groups, classes] or None."""
        found = torch.zeros(groups, self.program.chain.outputs, LANES)
        return found if offset is None else found.copy_(offset.view(groups, LANES, -1).transpose(1, 2))

    def run(
        self, w: Tensor, batches: Batches, offsets: Tensor, losses: Tensor, lr: float, *,
        start: Tensor | None = None, shares: Tensor | None = None, sums: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Take these steps in place, and add the losses of each client's steps to `losses` [groups, 16].

        With `start`, all clients start from this vector instead of `w`. With `shares` [groups, 16], the models
        after these steps, times their shares, are added to the vector `sums`.
        """
        size, chunk = batches.size, self.program.kit.chunk
        self._begin_batches_of(size)
        rows = batches.rows if batches.rows.stride(1) == 1 else batches.rows.contiguous()
        x = batches.x
        if x.ndim == 4 and x.dtype != torch.uint8:  # bytes are channels last as they are stored
            x = x.contiguous(memory_format=torch.channels_last)
        self._rate[0] = -lr
        given: dict[str, Any] = {
            "pw": w, "prows": rows, "poffset": offsets, "ploss": losses, "px": x, "ppixels": self._pixels,
            "ptarget": batches.target, "pscale": self._scale, "pscratch": self._scratch,
            "istride": rows.stride(0), "isize": size, "ichunks": -(-size // chunk), "psteps": batches.steps,
            "plr": self._rate, "pstart": start, "pshare": shares, "psums": sums,
            "isteps": rows.shape[1] // size, "ibegun": batches.begun,
            "igroups": len(w), "ifirst": start is not None, "ilast": shares is not None,
        }  # fmt: skip
        values = (given[name] for name in self.program.run.arguments)
        self._run(*[value.data_ptr() if isinstance(value, Tensor) else value for value in values])

    def _begin_batches_of(self, size: int) -> None:
        """Clear what larger batches left behind, which may not be finite."""
        if size != self._size:
            chunk = self.program.kit.chunk
            self._features[:, -(-size // chunk) * chunk * LANES :].zero_()
            self._scale.zero_()[:size] = 1 / size
            self._size = size
