"""Cohorts trained as one batch of models: stacked vectors, and a step mapped over them.

Results equal sequential training only up to rounding, because batched matrix kernels sum in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedrecall.client.batch import Batch
from fedrecall.client.batch_loader import BatchLoader
from fedrecall.client.frozen_model import FrozenModel
from fedrecall.client.job import Job
from fedrecall.client.mapped_step import MappedSteps
from fedrecall.client.moments import PREFIX, stored_moments
from fedrecall.client.partial_sums import GroupRows
from fedrecall.client.plan import StepPlan
from fedrecall.core.labels import Labels, shares
from fedrecall.core.rng import torch_stream
from fedrecall.core.vector import Tensors
from fedrecall.data.transform import Generators
from fedrecall.optimisers import SGD
from fedrecall.optimisers.clipping import clip_gradient

if TYPE_CHECKING:
    from fedrecall.client.lanes.cohort import LanesCohort


@dataclass
class CohortResult:
    """The results of a group of clients, one row each."""

    rows: GroupRows  # the loss is the mean over a client's steps
    models: Sequence[Tensor]  # [clients, parameters], in blocks of clients
    buffers: Tensors  # "b" and "i", one row each; models and buffers are on the CPU
    states: list[Tensors]  # of the clients, before training
    moments: Tensors = field(default_factory=dict)  # one row each, if they outlast the round; on the CPU
    summed: Tensor | None = None  # weighted sum of the models, if the kernels computed it


class Cohort:
    """Trains groups of clients with equal batch sizes. Not thread-safe."""

    def __init__(self, job: Job, inputs: BatchLoader, mapped: MappedSteps, lanes: LanesCohort | None = None) -> None:
        federation, device = inputs.federation, inputs.device
        self.job, self.federation, self.inputs, self.device = job, federation, inputs, device
        self.flat, self.mapped, self._lanes = mapped.flat, mapped, lanes
        self._sent = FrozenModel(job, federation, device) if job.compares_with_sent else None
        self._augments = federation.transform.is_random
        self._made: set[tuple[int, int, bool]] = set()
        self._one_start = not job.algorithm.personal  # all clients start from the server's model
        # Whether a step is just w - lr g.
        self._plain = job.optimiser == SGD() and not job.algorithm.corrects and job.local.clip_norm is None

    def train(self, plan: StepPlan, states: list[Tensors], server: Tensors, buffers: Tensors) -> CohortResult:
        """Take all local steps of these clients, from the published model or their own."""
        if self._lanes:
            return self._in_lanes(self._lanes, plan, states, server, buffers)
        return self._mapped_steps(plan, states, server, buffers)

    def _in_lanes(
        self, lanes: LanesCohort, plan: StepPlan, states: list[Tensors], server: Tensors, buffers: Tensors
    ) -> CohortResult:
        """Train by kernels, sixteen clients at a time."""
        job, tasks, client, start = self.job, plan.tasks, self._prepared(plan), server["w"]
        if self._own_starts(states):
            start = self._starts(server, states)
        augment = [torch_stream(job.seed, "augment", t.round, t.client) for t in tasks] if self._augments else []
        models, losses, summed = lanes.train(plan, start, client, tasks[0].lr, augment)
        none = {name: buffer.expand(len(tasks), -1) for name, buffer in buffers.items()}
        return CohortResult(plan.rows(losses), models, none, states, summed=summed)

    def make_mapped(self, plan: StepPlan, server: Tensors, buffers: Tensors) -> None:
        """Make the missing mapped steps of a plan. Their input shapes depend on the number of clients, the batch
        size, and whether all clients have the same parameters."""
        clients, shared = len(plan.tasks), self._one_start
        needed = {(clients, size, shared and s == 0): s for s, size in reversed(list(enumerate(plan.sizes)))}
        missing = needed.keys() - self._made
        if not missing:
            return
        server, buffers = self.device.put(server), self.device.put(buffers)
        w, b, i = (tensor.repeat(clients, 1) for tensor in (server["w"], buffers["b"], buffers["i"]))
        client = self.device.put(self._prepared(plan))
        if self._sent:
            self._sent.load(server["w"], buffers)
        for key in sorted(missing):
            _, size, at_start = key
            first = sum(plan.sizes[: needed[key]])
            batch = self._batch(plan.positions[:, first : first + size], None, client)
            self.mapped.make(batch, self._views(server["w"] if at_start else w, b, i))
            self._made.add(key)

    def _mapped_steps(self, plan: StepPlan, states: list[Tensors], server: Tensors, buffers: Tensors) -> CohortResult:
        """Train by the step of one client, mapped over all clients."""
        tasks, job, here, before, lr = plan.tasks, self.job, self.flat.w.device, states, plan.tasks[0].lr
        server, buffers = self.device.put(server), self.device.put(buffers)
        states = [self.device.put(state) for state in states]
        w = self._starts(server, states)
        b = self._stacked("b", buffers["b"], states, own=job.own_buffers)
        i = self._stacked("i", buffers["i"], states, own=job.own_buffers)
        together = int(plan.steps.min()) == len(plan.sizes)  # all clients take all steps
        g = None if self._plain and together else torch.zeros_like(w)
        moments, lasting = self._moments(w, server, states), job.optimiser.state != "reset"
        common = {name for name in set.intersection(*map(set, states)) if not name.startswith(PREFIX)}
        state = {name: torch.stack([state[name] for state in states]) for name in common}
        client = self.device.put(self._prepared(plan))
        augment = [torch_stream(job.seed, "augment", t.round, t.client) for t in tasks] if self._augments else []
        if self._sent:
            self._sent.load(server["w"], buffers)
        total, done = torch.zeros(len(tasks), device=here), 0
        for s, size in enumerate(plan.sizes):
            positions = plan.positions[:, done : done + size]
            done += size
            batch = self._batch(positions, augment, client)
            # All clients start from one model, so its products with their samples are one large product.
            at = server["w"] if s == 0 and self._one_start else w
            loss, gradients, new_b, new_i = self._gradient(batch, at, b, i)
            # Mask whole steps, never samples: masked samples would enter batch norm.
            active = None if together else torch.from_numpy(plan.steps > s).to(here)
            if g is None:
                self._spread(w, gradients, alpha=-lr)
            else:
                start = None if active is None else w.clone()
                held = {name: t.clone() for name, t in moments.items()} if lasting and active is not None else {}
                self._spread(g, gradients)
                if job.local.clip_norm is not None:
                    clip_gradient(g, job.local.clip_norm)
                job.optimiser.decay(w, g)
                job.algorithm.correct(g, w, server, state)
                job.optimiser.step(w, g, moments, lr)
                if active is not None and start is not None:
                    w = torch.where(active[:, None], w, start)
                    moments |= {name: torch.where(active[:, None], moments[name], t) for name, t in held.items()}
            if active is not None:
                loss = torch.where(active, loss, 0.0)
                new_b, new_i = torch.where(active[:, None], new_b, b), torch.where(active[:, None], new_i, i)
            total += loss
            b, i = new_b, new_i
        mean = total.cpu() / torch.from_numpy(plan.steps).clamp(min=1)
        home, kept = self.device.home({"w": w, "b": b, "i": i}), self.device.home(moments if lasting else {})
        return CohortResult(plan.rows(mean.tolist()), [home.pop("w")], home, before, kept)

    def _moments(self, w: Tensor, server: Tensors, states: list[Tensors]) -> Tensors:
        """Return the moments that the optimiser starts with, one row per client."""
        optimiser = self.job.optimiser
        if optimiser.state == "reset":
            return optimiser.init(w)
        rows = [optimiser.init(w[0]) | stored_moments(optimiser, server, state) for state in states]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    def _own_starts(self, states: list[Tensors]) -> bool:
        """Whether some of these clients start from their own models."""
        return not self._one_start and any(states)

    def _starts(self, server: Tensors, states: list[Tensors]) -> Tensor:
        """Return the vectors that clients start from, one row each."""
        if self._own_starts(states):
            return torch.stack([self.job.algorithm.model_for(state, server) for state in states])
        return server["w"].repeat(len(states), 1)

    def _stacked(self, name: str, published: Tensor, states: list[Tensors], *, own: bool) -> Tensor:
        if own and any(name in state for state in states):
            return torch.stack([state.get(name, published) for state in states])
        return published.repeat(len(states), 1)

    def _prepared(self, plan: StepPlan) -> Tensors:
        """Return the objective's prepared tensors, one row per client."""
        if not self.job.objective.knows_labels:
            return {}
        clients, classes = len(plan.clients), self.federation.num_classes
        known = self.job.knows_validation
        samples = [self.federation.indices(client, with_validation=known) for client in plan.clients.tolist()]
        owner = np.repeat(np.arange(clients), [len(own) for own in samples])
        cells = owner * classes + self.federation.train.y[np.concatenate(samples)]
        counts = torch.from_numpy(np.bincount(cells, minlength=clients * classes)).view(clients, classes)
        pooled = self.federation.pooled_shares if self.job.objective.asks_population else None
        prepare = vmap(lambda c, b: self.job.objective.prepare(Labels(c, b, pooled)))
        prepared: Tensors = prepare(counts, shares(counts))
        return prepared

    def _batch(self, positions: np.ndarray, augment: Generators, client: Tensors) -> Batch:
        """Return the samples of one step, one row per client, with the outputs of the published model."""
        clients, size = positions.shape
        x, target = self.inputs(self.federation.train, torch.from_numpy(positions.reshape(-1)), augment or None)
        batch = Batch(x.view(clients, size, *x.shape[1:]), target.view(clients, size), client)
        if self._sent:
            logits, features = self._sent(x)
            if "teacher" in self.job.objective.needs:
                batch.teacher = logits.view(clients, size, -1)
            if features is not None:
                batch.global_features = batch.previous_features = features.view(clients, size, -1)
        return batch

    def _gradient(self, batch: Batch, w: Tensor, b: Tensor, i: Tensor) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
        """Return losses, parameter gradients and new buffers, one row each; `w` may be one vector for all."""
        loss, gradients, buffers = self.mapped(batch, self._views(w, b, i))
        new_b, new_i = self._gathered(buffers, b) if self.flat.has_buffers else (b, i)
        return loss, gradients, new_b, new_i

    def _spread(self, vectors: Tensor, parts: list[Tensor], alpha: float | None = None) -> None:
        """Copy per-parameter tensors into stacked vectors, or add them times `alpha`."""
        views = [slot.view(vectors) for slot in self.flat.parameter_slots]
        if alpha is None:
            torch._foreach_copy_(views, parts)
        else:
            torch._foreach_add_(views, parts, alpha=alpha)

    def _views(self, w: Tensor, b: Tensor, i: Tensor) -> list[Tensor]:
        """Return all clients' parameters and buffers, as views of the stacked vectors."""
        views = [slot.view(w) for slot in self.flat.parameter_slots]
        views += [slot.view(b) for slot in self.flat.buffer_slots]
        start = 0
        for buffer in self.flat.int_buffers.values():
            views.append(i[:, start : start + buffer.numel()].view(len(i), *buffer.shape).to(buffer.dtype))
            start += buffer.numel()
        return views

    def _gathered(self, buffers: list[Tensor], before: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new buffers as stacked vectors."""
        b = torch.zeros_like(before)
        floats, integers = buffers[: len(self.flat.buffer_slots)], buffers[len(self.flat.buffer_slots) :]
        for slot, buffer in zip(self.flat.buffer_slots, floats):
            slot.view(b).copy_(buffer)
        parts = [buffer.reshape(len(before), -1).long() for buffer in integers]
        none = torch.zeros(len(before), 0, dtype=torch.long, device=before.device)
        return b, torch.cat(parts, 1) if parts else none
