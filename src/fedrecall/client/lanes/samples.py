"""A step with a sample in each lane: forward and backward by kernels, the loss by the objective as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedrecall.client import step as steps
from fedrecall.client.graph import UntraceableError, finish, trace, without_views_of_views
from fedrecall.client.lanes.chain import UnsupportedError, chain_of
from fedrecall.client.lanes.jit import Code, Cpu, host
from fedrecall.client.lanes.kernels.ir import FLOAT, LANES
from fedrecall.client.lanes.kernels.program import Place
from fedrecall.client.lanes.kernels.steps import SamplesProgram
from fedrecall.client.lanes.memory import scratch
from fedrecall.client.step import Compared, Step
from fedrecall.vector import Tensors

Loss = Callable[..., tuple[Tensor, Tensor]]  # of logits, target and all that is given


class LanesStep:
    """The loss and the gradient of batches of up to `local.batch_size` samples."""

    def __init__(self, step: Step, x: Tensor, cpu: Cpu | None = None) -> None:
        flat, local = step.flat, step.local
        if step.representation:
            raise UnsupportedError("features, at which the algorithm looks")
        if local.precision != "float32":
            raise UnsupportedError("a precision other than float32")
        cpu = cpu or host()
        self._step, self._flat = step, flat
        self._program = program = SamplesProgram(chain_of(flat, x), -(-local.batch_size // LANES), cpu.machine)
        self._scratch = scratch(program)
        code = self._code = Code(program.text, cpu)
        self._forward, self._backward = code.function(program.forward), code.function(program.backward)
        width = program.units * LANES
        self._features = self._view(program.at_features, program.chain.features, width)
        self._logits = self._view(program.at_logits, program.chain.outputs, width)
        self._gradient = self._view(program.at_logits_gradient, program.chain.outputs, width)
        self._samples = 0  # of the batch before
        self._rows = torch.zeros(width + LANES, dtype=torch.long)
        self._seen: dict[torch.Size, int] = {}
        self._losses: dict[torch.Size, Loss] = {}
        # It is compared with an eager step as recorded ones are.
        self.steps, self.next_check = 0, 1

    def _view(self, place: Place, rows: int, columns: int) -> Tensor:
        return self._scratch[place.at // FLOAT :][: rows * columns].view(rows, columns)

    @torch.no_grad()
    def __call__(self, x: Tensor, target: Tensor, client: Tensors, compared: Compared) -> Tensor:
        samples, chunk = len(x), self._program.kit.chunk * LANES
        chunks = -(-samples // chunk)
        if samples != self._samples:
            self._begin_batches_of(samples, chunks * chunk)
        x = x.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.contiguous_format)
        w, room = self._flat.w.data_ptr(), self._scratch.data_ptr()
        self._forward(w, x.data_ptr(), self._rows.data_ptr(), room, chunks)
        loss, gradient = self._loss(self._logits[:, :samples].t(), target, client, compared)
        self._gradient[:, :samples].copy_(gradient.t())
        self._backward(w, self._flat.g.data_ptr(), room, chunks)
        return loss

    def _begin_batches_of(self, samples: int, used: int) -> None:
        """Lanes without a sample of their own repeat the last one, and count nothing. What other batches have left
        in those that are not used must not be met again: it may not be finite."""
        torch.arange(len(self._rows), out=self._rows).clamp_(max=samples - 1)
        self._gradient[:, samples:].zero_()
        self._features[:, used:].zero_()
        self._samples = samples

    def _loss(self, logits: Tensor, target: Tensor, client: Tensors, compared: Compared) -> tuple[Tensor, Tensor]:
        """Recorded after some batches of one size, for then it pays: it has the same bits, which is checked."""
        given = (*client.values(), *compared.tensors().values())
        recorded = self._losses.get(logits.shape)
        if recorded is not None:
            return recorded(logits, target, *given)
        eager = self._eager_loss(list(client), compared)
        found = eager(logits, target, *given)
        seen = self._seen[logits.shape] = self._seen.get(logits.shape, 0) + 1
        if seen == steps.TRACE_AFTER + 1 and len(self._losses) < steps.MOST_GRAPHS:
            self._record(eager, found, logits, target, *given)
        return found

    def _eager_loss(self, client_names: list[str], like: Compared) -> Loss:
        """The loss and its gradient by the logits, of plain tensors."""
        step = self._step

        def loss_and_gradient(logits: Tensor, target: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
            client, others = dict(zip(client_names, given)), given[len(client_names) :]
            compared = replace(like, **dict(zip(like.tensors(), others)))
            with torch.enable_grad():
                logits = logits.detach().requires_grad_()
                loss = step.loss(logits, None, target, client, compared)
                (gradient,) = torch.autograd.grad(loss, [logits])
            return loss.detach(), gradient

        return loss_and_gradient

    def _record(self, eager: Loss, found: tuple[Tensor, Tensor], *inputs: Tensor) -> None:
        try:
            graph_module = trace(eager, inputs)
        except UntraceableError:
            return
        without_views_of_views(graph_module.graph)
        recorded: Any = finish(graph_module).forward
        if all(torch.equal(a, b) for a, b in zip(recorded(*inputs), found)):
            self._losses[inputs[0].shape] = recorded
