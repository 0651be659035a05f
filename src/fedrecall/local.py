"""The client's side: local training, evaluation, and the worker that every engine calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrecall.algorithms.base import LocalSteps
from fedrecall.data.federation import Federation
from fedrecall.data.samples import Samples
from fedrecall.engines.base import Job, Result, Task
from fedrecall.errors import InputError
from fedrecall.rng import default_generator, stream, torch_stream
from fedrecall.settings import Local
from fedrecall.store import ClientStore
from fedrecall.vector import FlatModel, Tensors, materialise

EVALUATION_BATCH = 256  # fixed, because kernels may round differently for other sizes


def batches(indices: np.ndarray, local: Local, random: np.random.Generator, least: int = 1) -> Iterator[Tensor]:
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


def least_samples(module: nn.Module) -> int:
    """How many samples a training batch needs: batch norm has no statistics of one."""
    return 2 if any(isinstance(inner, nn.modules.batchnorm._BatchNorm) for inner in module.modules()) else 1


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
        self.least = least_samples(self.flat.module)
        self.server: Tensors = {}
        self.buffers: Tensors = {}
        self._holds_server = False
        self._checked = False

    def publish(self, server: Tensors, buffers: Tensors) -> None:
        self.server, self.buffers = server, buffers
        self._holds_server = False

    def run(self, task: Task) -> Result:
        return self.train(task) if task.kind == "train" else self.evaluate(task)

    def _load(self, state: Tensors | None = None) -> None:
        """The published model, or a client's own where the algorithm has such."""
        if self.job.algorithm.personal and state:
            self.flat.load(state["w"], state)
            self._holds_server = False
        elif not self._holds_server:
            self.flat.load(self.server["w"], self.buffers)
            self._holds_server = True

    def train(self, task: Task) -> Result:
        """The client update: local steps from the server's model, then what the algorithm sends."""
        job, flat = self.job, self.flat
        indices = self.federation.trained_on(task.client)
        state = self._client_state(task)
        self._load(state)
        self._holds_server = False
        with default_generator(job.seed, "model", task.round, task.client):
            steps, loss = self._steps(task, indices, state)
        local = LocalSteps(steps, task.lr, job.local.momentum, len(indices))
        sent, new_state = job.algorithm.finish(flat.w, self.server, state, local, {})
        if job.algorithm.personal:
            new_state = new_state | flat.buffers()
        metrics: dict[str, Any] = {"loss": loss}
        if task.probe:
            metrics["correct"] = self._forward("validation", None)[0]
        return Result(
            task,
            sent={name: tensor.clone() for name, tensor in sent.items()},
            buffers=flat.buffers(),
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
        order = stream(job.seed, "batches", task.round, task.client)
        optimiser = SGD(task.lr, job.local.momentum, job.local.weight_decay)
        total, steps = torch.zeros(()), 0
        flat.module.train()
        for batch in batches(indices, local, order, self.least):
            x, target = federation.train.gather(batch)
            flat.g.zero_()
            logits = flat.module(model_input(federation.transform(x, augment), flat.w.dtype))
            loss = job.objective(logits, target, client)
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

    def evaluate(self, task: Task) -> Result:
        """Which of a range of pooled samples a model gets right, and their losses."""
        self._load(self._client_state(task) if task.state_version else None)
        correct, loss = self._forward(task.split, slice(task.start, task.stop))
        return Result(task, n=len(correct), metrics={"correct": correct, "loss": loss})

    @torch.no_grad()
    def _forward(self, split: str, part: slice | None) -> tuple[np.ndarray, np.ndarray]:
        source, positions = self.federation.pool(split)
        self.flat.module.eval()
        chosen = torch.from_numpy(positions if part is None else positions[part])
        results = [self._judge(source, chunk) for chunk in torch.split(chosen, EVALUATION_BATCH)]
        correct, losses = (torch.cat(parts).numpy() for parts in zip(*results))
        return correct, losses

    def _judge(self, source: Samples, positions: Tensor) -> tuple[Tensor, Tensor]:
        x, target = source.gather(positions)
        logits = self.flat.module(model_input(self.federation.transform(x), self.flat.w.dtype)).float()
        return logits.argmax(1) == target, nn.functional.cross_entropy(logits, target, reduction="none")


def build(job: Job, federation: Federation) -> FlatModel:
    """The job's model with its initial weights, which are a function of the seed."""

    with default_generator(job.seed, "init"), torch_threads(job.local.threads):
        module = job.model()
        materialise(module, partial(dry_batch, federation))
        refuse_broken_convolutions(module)
        return FlatModel(module)


def refuse_broken_convolutions(module: nn.Module) -> None:
    """oneDNN's gradient of a strided 1x1 convolution on few channels-last channels writes outside its memory
    (oneDNN issue 6035): the process may crash, or go on with wrong numbers."""
    for name, layer in module.named_modules():
        if not isinstance(layer, nn.Conv2d) or set(layer.kernel_size) != {1} or set(layer.stride) == {1}:
            continue
        channels = layer.in_channels // layer.groups
        if 1 < channels < 16:
            raise InputError(
                f"layer {name!r} of the model is a 1x1 convolution with stride {layer.stride[0]} on {channels} "
                "channels, whose gradient is broken in PyTorch's CPU library; take every second pixel first, by "
                f"AvgPool2d(1, {layer.stride[0]}), and convolve with stride 1"
            )


def check_outputs(flat: FlatModel, federation: Federation) -> None:
    """Does the model take these samples and answer with a number for each class?"""
    was_training = flat.module.training
    with torch.no_grad():
        logits = flat.module.eval()(dry_batch(federation, flat.w.dtype))
    flat.module.train(was_training)
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if not isinstance(shape, tuple) or len(shape) != 2 or shape[1] != federation.num_classes:
        raise InputError(
            f"the model answers two samples with {shape}; two rows of {federation.num_classes} class scores "
            "were expected"
        )


def dry_batch(federation: Federation, dtype: torch.dtype = torch.float32) -> Tensor:
    """Two samples as the model sees them."""
    x, _ = federation.train.gather(torch.zeros(2, dtype=torch.long))
    return model_input(federation.transform(x), dtype)


def model_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Floats in the model's precision; images channels last, which is how convolutions run here."""
    if x.is_floating_point():
        x = x.to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """As many threads inside, as many as before after."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
