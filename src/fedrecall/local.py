"""The client's side: local training, evaluation, and the worker that every engine calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrecall.algorithms.base import LocalSteps
from fedrecall.building import build, least_samples, model_input
from fedrecall.data.federation import Federation
from fedrecall.engines.base import Job, Result, Task
from fedrecall.errors import InputError
from fedrecall.fisher import CHUNK, fisher
from fedrecall.frozen import Frozen
from fedrecall.judge import Judge
from fedrecall.representation import Representation
from fedrecall.rng import Shuffle, default_generator, torch_stream
from fedrecall.settings import Local
from fedrecall.store import ClientStore
from fedrecall.vector import Tensors


def batches(indices: np.ndarray, local: Local, random: Shuffle, least: int = 1) -> Iterator[Tensor]:
    """Positions of the samples of each step: a new order every epoch, in batches of at least `least` samples.

    A last partial batch is dropped (or kept, as the settings say) unless it is the only one.
    """
    size = min(local.batch_size, len(indices))
    per_epoch = steps_per_epoch(len(indices), local, least)
    left = local.steps or (local.epochs or 0) * per_epoch
    while left > 0:
        order = torch.from_numpy(random.permutation(indices))
        for step in range(min(per_epoch, left)):
            yield order[step * size : (step + 1) * size]
        left -= per_epoch


def steps_per_epoch(samples: int, local: Local, least: int = 1) -> int:
    size = min(local.batch_size, samples)
    whole, last = divmod(samples, size)
    return whole + (local.partial_batch == "keep" and last >= least)


@dataclass
class SGD:
    """Plain SGD with momentum and weight decay on flat vectors; momentum starts at zero every round."""

    lr: float
    momentum: float
    weight_decay: float
    velocity: Tensor | None = None

    def decay(self, w: Tensor, g: Tensor) -> None:
        if self.weight_decay:
            g.add_(w, alpha=self.weight_decay)

    def step(self, w: Tensor, g: Tensor) -> None:
        if self.momentum:
            if self.velocity is None:
                self.velocity = g.clone()
            else:
                self.velocity.mul_(self.momentum).add_(g)
            g = self.velocity
        w.add_(g, alpha=-self.lr)


class Worker:
    """Runs tasks with one model, one client at a time. It keeps nothing from one task to the next."""

    def __init__(self, job: Job, federation: Federation, store: ClientStore) -> None:
        self.job, self.federation, self.store = job, federation, store
        self.flat = build(job, federation)
        self.judge = Judge(self.flat, federation)
        self.least = least_samples(self.flat.module)
        self.server: Tensors = {}
        self.buffers: Tensors = {}
        self._holds_server = False
        self._checked = False
        needs = job.algorithm.needs | job.objective.needs
        self._representation = (
            Representation(self.flat.module, job.algorithm.representation) if "features" in needs else None
        )
        self._sent = Frozen(job, federation) if needs & {"teacher", "features"} else None
        self._previous = Frozen(job, federation) if "previous" in needs else None

    def publish(self, server: Tensors, buffers: Tensors) -> None:
        self.server, self.buffers = server, buffers
        self._holds_server = False

    def run(self, task: Task) -> Result:
        return self.train(task) if task.kind == "train" else self.evaluate(task)

    def _load(self, state: Tensors) -> None:
        """The model that a task starts from: the published one, or what the client has of its own instead."""
        own_model = self.job.algorithm.personal and "w" in state
        own_buffers = self.job.own_buffers and "b" in state
        if self._holds_server and not own_model and not own_buffers:
            return
        w, buffers = state["w"] if own_model else self.server["w"], state if own_buffers else self.buffers
        self.flat.load(w, buffers)
        self._holds_server = not own_model and not own_buffers

    def _load_frozen(self, state: Tensors) -> None:
        """The models that the client compares itself with."""
        if self._sent:
            self._sent.load(self.flat.w, self.flat.buffers())  # as the client starts: just loaded
        if self._previous and "b" in state:
            self._previous.load(state["w"], state)

    def train(self, task: Task) -> Result:
        """The client update: local steps from the server's model, then what the algorithm sends."""
        job, flat = self.job, self.flat
        indices = self.federation.trained_on(task.client)
        state = self._client_state(task)
        self._load(state)
        self._load_frozen(state)
        self._holds_server = False
        with default_generator(job.seed, "model", task.round, task.client):
            steps, loss = self._steps(task, indices, state)
        local = LocalSteps(steps, task.lr, job.local.momentum, len(indices))
        extra = {"fisher": self._fisher(indices)} if "fisher" in job.algorithm.needs else {}
        sent, new_state = job.algorithm.finish(flat.w, self.server, state, local, extra)
        if job.own_buffers or self._previous:
            new_state = new_state | flat.buffers()
        metrics: dict[str, Any] = {"loss": loss}
        if task.probe:
            metrics["correct"] = self.judge("validation")[0]
        return Result(
            task,
            sent={name: tensor.clone() for name, tensor in sent.items()},
            buffers={} if job.own_buffers else flat.buffers(),
            state=self.store.put(task.client, task.round, new_state),
            n=len(indices),
            steps=steps,
            metrics=metrics,
        )

    def _client_state(self, task: Task) -> Tensors:
        if task.state_version:
            return self.store.get(task.client, task.state_version)
        # A copy: a client may keep x as its state and change it.
        return self.job.algorithm.init_client(self.server["w"].clone())

    def _steps(self, task: Task, indices: np.ndarray, state: Tensors) -> tuple[int, float]:
        """All local steps of a client; how many there were, and their mean loss."""
        job, flat, federation = self.job, self.flat, self.federation
        client = job.objective.prepare(federation.labels(task.client))
        local = job.local.model_copy(update={"steps": task.steps}) if task.steps else job.local
        if min(job.local.batch_size, len(indices)) < self.least:
            raise InputError(
                f"client {task.client} has {len(indices)} training samples and local.batch_size is "
                f"{job.local.batch_size}: every batch has one sample, but batch norm needs two"
            )
        augment = torch_stream(job.seed, "augment", task.round, task.client)
        order = Shuffle(job.seed, task.round, task.client)
        optimiser = SGD(task.lr, job.local.momentum, job.local.weight_decay)
        total, steps = torch.zeros(()), 0
        flat.module.train()
        for batch in batches(indices, local, order, self.least):
            x, target = federation.train.gather(batch)
            flat.g.zero_()
            loss = self._loss(model_input(federation.transform(x, augment), flat.w.dtype), target, client, state)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.decay(flat.w, flat.g)
            job.algorithm.correct(flat.g, flat.w, self.server, state)
            optimiser.step(flat.w, flat.g)
            total += loss.detach()
            steps += 1
            if not self._checked:
                flat.check_views()
                self._checked = True
        return steps, float(total) / max(steps, 1)

    def _loss(self, x: Tensor, target: Tensor, client: Tensors, state: Tensors) -> Tensor:
        """The objective on a batch, and the algorithm's penalty where it has one."""
        job = self.job
        logits = self.flat.module(x)
        if self._sent is None:
            return job.objective(logits, target, client)
        teacher, global_features = self._sent(x)
        loss = job.objective(logits, target, client, teacher if "teacher" in job.objective.needs else None)
        if self._representation is None:
            return loss
        assert global_features is not None
        # In a client's first round its previous model is the one it was sent.
        previous = self._previous(x)[1] if self._previous and "b" in state else global_features
        assert previous is not None
        return loss + job.algorithm.penalty(self._representation.take(), global_features, previous)

    def _fisher(self, indices: np.ndarray) -> Tensor:
        train, dtype = self.federation.train, self.flat.w.dtype
        chunks = map(train.gather, torch.split(torch.from_numpy(indices), CHUNK))
        return fisher(self.flat, ((model_input(self.federation.transform(x), dtype), y) for x, y in chunks))

    def evaluate(self, task: Task) -> Result:
        """Which of a range of pooled samples a model gets right, and their losses."""
        self._load(self._client_state(task) if task.state_version else {})
        correct, loss = self.judge(task.split, slice(task.start, task.stop))
        return Result(task, n=len(correct), metrics={"correct": correct, "loss": loss})
