"""The worker that every engine calls for local training and evaluation.

Models, gradients, samples and the state that steps read are on the worker's device. Tasks, states and results are
on the CPU, where `Algorithm.finish` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedrecall.algorithms.base import LocalSteps
from fedrecall.backend.device import CPU, Device
from fedrecall.client.batch import Batch
from fedrecall.client.batch_loader import BatchLoader
from fedrecall.client.batches import LocalPlan
from fedrecall.client.fisher import CHUNK, fisher
from fedrecall.client.frozen_model import FrozenModel
from fedrecall.client.job import Job
from fedrecall.client.moments import stored_moments, with_moment_prefix
from fedrecall.client.predict import Predictor
from fedrecall.client.predictions import EvaluateResult
from fedrecall.client.step import ExactStep, Step
from fedrecall.client.tasks import EvaluateTask, Task, TrainTask
from fedrecall.client.update import ProbeAnswers, Update
from fedrecall.core.rng import Shuffle, default_generator, torch_stream
from fedrecall.core.vector import Tensors
from fedrecall.data.federation import Federation
from fedrecall.models.build import has_statistics, least_samples
from fedrecall.runs.client_states import States
from fedrecall.updates.pipeline import STATISTICS

Correction = Callable[[Tensor, Tensor, Tensors, Tensors], None]  # of a gradient, in place

if TYPE_CHECKING:
    from fedrecall.client.lanes.lowering import Lowering
    from fedrecall.client.lanes.samples import LanesStep


class Worker:
    """Runs tasks with one model, one client at a time; keeps nothing from one task to the next."""

    def __init__(self, job: Job, federation: Federation, states: States, device: Device = CPU) -> None:
        self.job, self.federation, self.states, self.device = job, federation, states, device
        self.flat = job.build_model(federation, device)
        self.inputs = BatchLoader(federation, self.flat.w.dtype, device)
        shift = job.logit_shift(federation)
        self.objective = job.objective.on(device.torch)
        lanes = self._lanes_step(job.lowering) if job.lowering else None
        self.step: Step = lanes or ExactStep(self.flat, job)
        self._read = self.inputs.stored if self.step.reads_bytes else self.inputs
        shift = None if shift is None else shift.to(device.torch)
        self.predict = Predictor(self.flat, self.inputs, shift, lanes)
        self.least, self._payload = least_samples(self.flat.module), self.flat.payload
        self._statistics = has_statistics(self.flat.module) and not job.own_buffers
        self.server: Tensors = {}
        self.buffers: Tensors = {}
        self._server, self._buffers = self.server, self.buffers  # the same, on the device
        self._holds_server = False
        self._checked = False
        self._augments = federation.transform.is_random
        self._knows_labels = job.objective.knows_labels
        self._sent = FrozenModel(job, federation, device) if job.compares_with_sent else None
        self._previous = FrozenModel(job, federation, device) if "previous" in job.algorithm.needs else None

    def _lanes_step(self, lowering: Lowering) -> LanesStep:
        from fedrecall.client.lanes.samples import LanesStep  # imports a compiler, so only when needed

        return LanesStep(lowering, self.flat, self.objective, self.job.local)

    def publish(self, server: Tensors, buffers: Tensors) -> None:
        self.server, self.buffers = server, buffers
        with self.explained():
            self._server, self._buffers = self.device.put(server), self.device.put(buffers)
        self._holds_server = False

    def explained(self) -> AbstractContextManager[None]:
        """Return a context that turns device failures into readable errors."""
        return self.device.explained(self.job.local.batch_size)

    def run(self, task: Task) -> Update | EvaluateResult:
        if self.device.is_cpu:
            return self._run(task)
        with self.explained():
            return self._run(task)

    def _run(self, task: Task) -> Update | EvaluateResult:
        return self.train(task) if isinstance(task, TrainTask) else self.evaluate(task)

    def _load(self, state: Tensors, *, trains: bool = False) -> None:
        """Load the model that a task starts from: the published one or the client's own."""
        algorithm = self.job.algorithm
        beside = algorithm.trains_own and not trains  # the own model has statistics of its own
        own_buffers = (self.job.own_buffers or beside) and "b" in state
        own = own_buffers or (algorithm.personal and bool(state) and (beside or not algorithm.trains_own))
        if self._holds_server and not own:
            return
        personal = own and (beside or not algorithm.trains_own)
        w = algorithm.model_for(state, self.server) if personal else self._server["w"]
        self.flat.load(w, state if own_buffers else self._buffers)
        self._holds_server = not own

    def _load_frozen(self, state: Tensors) -> None:
        """Load the models that the client compares itself with."""
        if self._sent:
            self._sent.load(self.flat.w, self.flat.buffers())  # the client's starting point, just loaded
        if self._previous and "b" in state:
            self._previous.load(state["w"], state)

    def train(self, task: TrainTask) -> Update:
        """Return a client's update: local steps, then the algorithm's `finish`."""
        job = self.job
        indices = self.federation.indices(task.client)
        state = self.client_state(task)
        self._load(state, trains=True)
        self._load_frozen(state)
        self._holds_server = False
        with default_generator(job.seed, "model", task.round, task.client, self.device.torch):
            steps, loss = self._steps(task, indices, self.device.put(state), job.algorithm.correct)
            moments = self.step.moments
            # A probe trains the model that is sent alone.
            own = self._train_own(task, indices, state) if job.algorithm.trains_own and not task.probe else {}
        return self._finished(task, state, steps, loss, moments, own)

    def _train_own(self, task: TrainTask, indices: np.ndarray, state: Tensors) -> Tensors:
        """Return the client's own model and its buffers after its steps; the model that is sent stays loaded."""
        sent, buffers, algorithm = self.flat.w.clone(), self.flat.buffers(), self.job.algorithm
        self.flat.load(algorithm.model_for(state, self.server), state if "b" in state else self._buffers)

        def correct(g: Tensor, v: Tensor, server: Tensors, client: Tensors) -> None:
            algorithm.correct_own(g, v, server)

        self._steps(task, indices, {}, correct)
        buffers_of_own = self.flat.buffers() if self.flat.has_buffers else {}
        own = self.device.home({"own": self.flat.w.clone(), **buffers_of_own})
        self.flat.load(sent, buffers)
        return own

    def finished_with(
        self, task: TrainTask, w: Tensor, buffers: Tensors, state: Tensors, steps: int, loss: float, moments: Tensors
    ) -> Update:
        """Return the update of a client whose steps were taken elsewhere."""
        self.flat.load(w, buffers)
        self._holds_server = False
        return self._finished(task, state, steps, loss, moments)

    def _finished(
        self, task: TrainTask, state: Tensors, steps: int, loss: float, moments: Tensors, own: Tensors | None = None
    ) -> Update:
        """Return the client's update after its last step, and store its new state."""
        job, flat = self.job, self.flat
        indices = self.federation.indices(task.client)
        local = LocalSteps(steps, task.lr, len(indices), job.optimiser)
        extra = {"fisher": self._fisher(indices)} if "fisher" in job.algorithm.needs else {}
        home, own = self.device.home, dict(own or {})
        extra |= {"own": own.pop("own")} if own else {}
        buffers = home(flat.buffers()) if flat.has_buffers or self._previous or job.own_buffers else {}
        sent, new_state = job.algorithm.finish(home({"w": flat.w})["w"], self.server, state, local, home(extra))
        if job.own_buffers or self._previous:
            new_state = new_state | buffers
        new_state = new_state | own  # the statistics of the client's own model
        if job.optimiser.state == "keep":
            new_state = new_state | with_moment_prefix(home(moments))
        elif job.averages_moments:
            sent = sent | with_moment_prefix(home(moments))
        weights = {name: job.weight(name, local.samples, steps) for name in sent}
        travelling = {} if job.own_buffers or not flat.has_buffers else buffers
        if job.pipeline:
            sent, travelling, kept = self._through_stages(task, sent, travelling, state)
            new_state = new_state | kept
        sent = {name: tensor.clone() for name, tensor in sent.items()}
        return Update(
            task,
            sent,
            travelling,
            weights,
            state=self.states.put(task.client, task.round, new_state),
            samples=len(indices),
            steps=steps,
            loss=loss,
            probe=self._probe(task) if task.probe else None,
            wire_bytes=job.wire_bytes(self._payload, sent, travelling),
        )

    def _through_stages(
        self, task: TrainTask, sent: Tensors, buffers: Tensors, state: Tensors
    ) -> tuple[Tensors, Tensors, Tensors]:
        """Return the message after the client's stages, the buffers sent with it, and the stages' new state.

        Float buffers pass through the stages with the update; counters are sent unchanged.
        """
        origin = {**self.server, STATISTICS: self.buffers["b"]} if buffers else self.server
        whole = {**sent, STATISTICS: buffers["b"]} if buffers else sent
        message, kept = self.job.pipeline.send(whole, origin, state, task.round, task.client, task.cohort)
        return message, {"i": buffers["i"]} if buffers else {}, kept

    def _probe(self, task: TrainTask) -> ProbeAnswers:
        """Return the samples that the client's model gets right, also with the sent statistics if averaged."""
        with default_generator(self.job.seed, "evaluate", task.round, task.client, self.device.torch):
            correct = self.predict("validation", task.clients).correct
            if not self._statistics:
                return ProbeAnswers(correct)
            self.flat.load(self.flat.w, self._buffers)
            return ProbeAnswers(correct, self.predict("validation", task.clients).correct)

    def client_states(self, tasks: Sequence[TrainTask]) -> list[Tensors]:
        """Return each client's state before its task."""
        if self.job.keeps_state:
            return [self.client_state(task) for task in tasks]
        return [{}] * len(tasks)

    def client_state(self, task: Task) -> Tensors:
        """Return the client's state before a task."""
        if task.state_version and task.client is not None:
            return self.states.get(task.client, task.state_version)
        if not self.job.algorithm.keeps_state:
            return {}
        # Clone, because a client may keep x as its state and modify it.
        return self.job.algorithm.init_client(self.server["w"].clone())

    def _steps(self, task: TrainTask, indices: np.ndarray, state: Tensors, correct: Correction) -> tuple[int, float]:
        """Take all local steps of a client; return their number and mean loss."""
        job, flat, federation = self.job, self.flat, self.federation
        client: Tensors = {}
        if self._knows_labels:
            known = federation.labels(
                task.client,
                with_validation=job.knows_validation,
                with_pooled=bool(job.objective.asks_population),
            )
            client = self.device.put(self.objective.prepare(known))
        plan = LocalPlan.of(job.local, len(indices), self.least, task.steps)
        augment = torch_stream(job.seed, "augment", task.round, task.client) if self._augments else None
        total = torch.zeros((), device=flat.w.device)
        self.step.begin_client(task.lr, client, stored_moments(job.optimiser, self._server, state))
        if not flat.module.training:
            flat.module.train()
        for positions in plan.batches(indices, Shuffle(job.seed, task.round, task.client)):
            x, target = self._read(federation.train, positions, augment)
            total += self._gradient(self._batch(x, target, client, state), state)
            self.step.decay()
            correct(flat.g, flat.w, self._server, state)
            self.step.descend()
            if not self._checked:
                flat.check_views()
                self._checked = True
        return plan.steps, float(total) / max(plan.steps, 1)

    def _gradient(self, batch: Batch, state: Tensors) -> Tensor:
        """Fill the model's gradient, taken where the algorithm wants it; return the loss at the first place."""
        algorithm, flat = self.job.algorithm, self.flat
        if not algorithm.perturbs:
            return self.step(batch)
        loss = buffers = None
        if "gradient" in algorithm.needs:
            loss, buffers = self.step(batch).clone(), flat.buffers()
        y = flat.w.clone()
        flat.w.add_(algorithm.perturbation(flat.g, y, self._server, state))
        beside = self.step(batch)
        flat.load(y, flat.buffers() if buffers is None else buffers)
        return beside if loss is None else loss

    def _batch(self, x: Tensor, target: Tensor, client: Tensors, state: Tensors) -> Batch:
        """Return a batch with the outputs of the models that a client compares itself with."""
        if self._sent is None:
            return Batch(x, target, client)
        logits, global_features = self._sent(x)
        teacher = logits if "teacher" in self.job.objective.needs else None
        previous = global_features  # in a client's first round its previous model is the one it was sent
        if global_features is not None and self._previous and "b" in state:
            previous = self._previous(x)[1]
        return Batch(x, target, client, teacher, global_features, previous)

    def _fisher(self, indices: np.ndarray) -> Tensor:
        chunks = torch.split(torch.from_numpy(indices), CHUNK)
        return fisher(self.flat, (self.inputs(self.federation.train, chunk) for chunk in chunks))

    def evaluate(self, task: EvaluateTask) -> EvaluateResult:
        """Return a model's predictions for a range of pooled samples."""
        self._load(self.client_state(task) if task.state_version else {})
        part = slice(task.start, task.stop)
        with default_generator(self.job.seed, "evaluate", task.round, task.order, self.device.torch):
            return EvaluateResult(task, self.predict(task.split, task.clients, part, task.logits))
