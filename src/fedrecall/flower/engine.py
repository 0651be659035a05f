"""The engine whose workers are real clients: it sends tasks as messages over Flower's grid.

Nodes train and validate on their own data; the server has the test set. Answers are checked before they are used,
and a client whose answer is missing or refused is left out of the round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MessageType, RecordDict

from fedrecall.backend.device import CPU, Device
from fedrecall.client.batches import LocalPlan
from fedrecall.client.job import Job
from fedrecall.client.partial_sums import Result
from fedrecall.client.predictions import EvaluateResult, Predictions
from fedrecall.client.tasks import EvaluateTask, Task, TrainTask
from fedrecall.client.update import MissingClient, ProbeAnswers, Update
from fedrecall.core.vector import Tensors
from fedrecall.data.federation import Federation
from fedrecall.engines import Engine, Serial
from fedrecall.errors import InputError
from fedrecall.flower.messages import (
    ARRAYS,
    METRICS,
    MODEL,
    PUBLISHED,
    TASK,
    Layouts,
    metrics_of,
    split_buffers,
    the_record,
    with_prefix,
)
from fedrecall.flower.nodes import Nodes
from fedrecall.flower.refusal import RefusedError
from fedrecall.flower.states import StatesElsewhere
from fedrecall.flower.tensors import pack_record, unpack_record
from fedrecall.models.build import has_statistics, least_samples
from fedrecall.recipe.settings import Execution
from fedrecall.runs.client_states import StateFiles, States
from fedrecall.version import __version__

Count = tuple[int, float]  # correct samples, and the sum of the negative log-likelihood over all samples
Counts = dict[str, Count]  # counts by model name


class Flower(Engine):
    """Sends tasks as messages to the clients' nodes."""

    name = "flower"
    leaves_out_clients = True
    in_this_process = False

    def __init__(self, nodes: Nodes, run: str, clipping_norm: float = 0.0, notes: Sequence[str] = ()) -> None:
        self.roster, self.run_name, self.clipping_norm, self.notes = nodes, run, clipping_norm, notes
        self.workers = nodes.clients
        self.resume_command = "flwr run with the same app and federation, and --run-config resume=true"
        self._here: Serial | None = None
        self._model: Tensors = {}  # the published model
        self._known: dict[tuple[int, int], Count] = {}  # answers about it, by client and state version

    @classmethod
    def create(cls, workers: int, execution: Execution, devices: Sequence[Device] = (CPU,)) -> Self:
        raise InputError("the engine 'flower' runs inside a Flower app, which fedrecall flower init writes")

    def states_below(self, folder: Path) -> StateFiles:
        return StatesElsewhere(folder)

    def open(self, job: Job, federation: Federation, states: States) -> None:
        self.job, self.federation = job, federation
        flat = job.build_model(federation)
        self.layouts, self.payload = Layouts.of(job, flat), flat.payload
        self.least, self.has_buffers = least_samples(flat.module), flat.has_buffers
        self.statistics = has_statistics(flat.module) and not job.own_buffers
        if federation.test is not None:
            self._here = Serial.create(1, Execution())
            self._here.open(job, federation, states)

    def publish(self, round: int, server: Tensors, buffers: Tensors) -> None:
        self.server, self.buffers = server, with_prefix(buffers) if self.has_buffers else {}
        model = {"w": server["w"], **self.buffers}
        if not equal_tensors(model, self._model):
            self._model, self._known = model, {}
        if self._here:
            self._here.publish(round, server, buffers)

    def close(self) -> None:
        if self._here:
            self._here.close()
            self._here = None

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        asked = list(tasks)
        train = [task for task in asked if isinstance(task, TrainTask)]
        other = [task for task in asked if isinstance(task, EvaluateTask)]
        if train:
            yield from self._train(train)
        if other and other[0].split == "test":
            assert self._here is not None
            yield from self._here.run(other)
        elif other:
            yield from self._evaluate(other)

    # Training

    def _train(self, tasks: list[TrainTask]) -> Iterator[Update | MissingClient]:
        arrays = pack_record({**self.server, **self.buffers})
        contents = {task.client: RecordDict({ARRAYS: arrays, TASK: self._train_task(task)}) for task in tasks}
        self.roster.silent = set()
        answers = self.roster.ask(MessageType.TRAIN, contents, tasks[0].round)
        results: list[Update | MissingClient] = []
        models: dict[int, Tensors] = {}
        for task in tasks:
            answer = answers.pop(task.client)
            try:
                if isinstance(answer, str):
                    raise RefusedError(answer)
                result, model = self._checked(task, answer)
            except RefusedError as error:
                results.append(MissingClient(task, str(error)))
                continue
            results.append(result)
            finite = result.finite_part()[0] is not None  # the round drops non-finite updates
            if task.probe and finite and self.roster.facts[task.client].forgetting:
                models[task.client] = model
        if models:
            self._probe(results, models)
        yield from results

    def _task(self, client: int, round: int, **more: int | float | bool | list[float]) -> ConfigRecord:
        common = {"run": self.run_name, "recipe": self.roster.recipe, "fedrecall": __version__}
        lanes = self.job.lowering is not None
        return ConfigRecord({**common, "lanes": lanes, "client": client, "round": round, **more})

    def _train_task(self, task: TrainTask) -> ConfigRecord:
        record = self._task(
            task.client,
            task.round,
            lr=task.lr,
            steps=task.steps,
            state=task.state_version,
            cohort=task.cohort,
            model=self._asks_model(task),
        )
        if self.job.objective.asks_population:
            record["pooled"] = self.federation.pooled_shares.tolist()
        if self.clipping_norm:
            record["clipping_norm"] = self.clipping_norm  # Flower's clipping mods read it here
        return record

    def _asks_model(self, task: TrainTask) -> bool:
        """Whether a probe needs the client's model besides its update, and the node's owner allows that."""
        sends_it = self.job.algorithm.sends_models and not self.job.own_buffers and not self.job.pipeline
        return task.probe and not sends_it and self.roster.facts[task.client].forgetting

    def _checked(self, task: TrainTask, content: RecordDict) -> tuple[Update, Tensors]:
        """Return a client's update and model; raise a `RefusedError` if they are not as the round expects."""
        expected = {ARRAYS, METRICS, *([MODEL] if self._asks_model(task) else [])}
        if set(content) != expected:
            raise RefusedError(f"it has the records {sorted(content)}; {sorted(expected)} were expected")
        # The round itself drops non-finite values, as on every engine.
        tensors = unpack_record(the_record(content, ARRAYS, ArrayRecord), self.layouts.up, finite=False)
        sent, buffers = split_buffers(tensors)
        metrics, facts, local = metrics_of(content), self.roster.facts[task.client], self.job.local
        samples, steps, loss = metrics.whole("samples"), metrics.whole("steps"), metrics.real("loss")
        should = LocalPlan.of(local, facts.train, self.least, task.steps).steps
        if (samples, steps) != (facts.train, should):
            raise RefusedError(
                f"it trained on {samples} samples in {steps} steps; {facts.train} and {should} were expected"
            )
        state = metrics.whole("state")
        if state not in (0, task.round):
            raise RefusedError(f"its state is that of round {state}; 0 or {task.round} was expected")
        weights = {name: self.job.weight(name, samples, steps) for name in self.layouts.names}
        size = self.job.wire_bytes(self.payload, sent, buffers)
        result = Update(task, sent, buffers, weights, state, samples, steps, loss, wire_bytes=size)
        if not math.isfinite(loss) and result.finite_part()[0] is not None:
            raise RefusedError("its loss is not finite")
        if MODEL in expected:
            return result, unpack_record(the_record(content, MODEL, ArrayRecord), self.layouts.model)
        return result, {"w": sent["w"], **with_prefix(buffers)} if "w" in sent else {}

    # Evaluation

    def _evaluate(self, tasks: list[EvaluateTask]) -> Iterator[EvaluateResult]:
        """Yield the results of the published model on the nodes' validation data, from their counts."""
        round, asked = tasks[0].round, dict[int, int]()
        for task in tasks:
            for client in self._whose(task.clients):
                asked[client] = task.state_version
        unknown = {client: version for client, version in asked.items() if (client, version) not in self._known}
        for client, counts in self._count(round, unknown, {PUBLISHED: self._model}, others=False).items():
            self._known[client, asked[client]] = counts[PUBLISHED]
        for task in tasks:
            parts = [self._samples(k, self._known.get((k, task.state_version))) for k in self._whose(task.clients)]
            correct, nll = (np.concatenate(column)[task.start : task.stop] for column in zip(*parts))
            yield EvaluateResult(task, Predictions(correct, nll, np.full(len(correct), np.nan)))

    def _whose(self, clients: Sequence[int]) -> Sequence[int]:
        """Return the clients that a task names; naming none means all."""
        return clients or range(self.federation.population)

    def _samples(self, client: int, counts: Count | None) -> tuple[np.ndarray, np.ndarray]:
        """Return a client's counts as one entry per sample, in arbitrary order: correctness, and the mean negative
        log-likelihood; NaN if it did not answer."""
        count = self.roster.facts[client].validation
        if counts is None:
            return np.full(count, np.nan), np.full(count, np.nan)
        correct, nll = counts
        return (np.arange(count) < correct).astype(np.float64), np.full(count, nll / count)

    def _count(
        self, round: int, versions: dict[int, int], models: dict[str, Tensors], *, others: bool
    ) -> dict[int, Counts]:
        """Return the counts of models by client, without clients whose answer is missing or invalid."""
        records = {name: pack_record(model) for name, model in models.items()}
        contents = {
            client: RecordDict({**records, TASK: self._task(client, round, state=version, others=others)})
            for client, version in versions.items()
            if self.roster.facts[client].validation
        }
        found = dict[int, Counts]()
        for client, answer in self.roster.ask(MessageType.EVALUATE, contents, round).items():
            try:
                if isinstance(answer, str):
                    raise RefusedError(answer)
                found[client] = self._counted(client, answer, sorted(models))
            except RefusedError as error:
                self.roster.notes.append(f"client {client} is left out of an evaluation in round {round}: {error}")
        return found

    def _counted(self, client: int, content: RecordDict, names: list[str]) -> Counts:
        if set(content) != {METRICS}:
            raise RefusedError(f"it has the records {sorted(content)}; {[METRICS]} were expected")
        metrics, samples = metrics_of(content), self.roster.facts[client].validation
        if metrics.whole("samples") != samples:
            raise RefusedError(f"it has {metrics.whole('samples')} validation samples; {samples} were expected")
        correct, nll = metrics.wholes("correct", len(names)), metrics.reals("nll", len(names))
        if max(correct, default=0) > samples:
            raise RefusedError(f"{max(correct)} of {samples} samples are said to be right")
        return dict(zip(names, zip(correct, nll)))

    def _probe(self, results: Sequence[Update | MissingClient], models: dict[int, Tensors]) -> None:
        """Evaluate each probed model at each client that allows it, and add the answers to the results."""
        named: dict[str, Tensors] = {}
        for client, model in models.items():
            named[f"model-{client}"] = model
            if self.statistics:
                named[f"model-{client}-global"] = {"w": model["w"], **self.buffers}
        asked = {k: 0 for result in results for k in self._whose(result.task.clients)}
        willing = {k: 0 for k in asked if self.roster.facts[k].forgetting}
        found = self._count(results[0].task.round, willing, named, others=True)
        for result in results:
            if isinstance(result, Update) and result.task.client in models:
                name = f"model-{result.task.client}"
                correct = self._row(found, name, result.task)
                with_global = self._row(found, f"{name}-global", result.task) if self.statistics else None
                result.probe = ProbeAnswers(correct, with_global)

    def _row(self, found: dict[int, Counts], name: str, task: TrainTask) -> np.ndarray:
        parts = [self._samples(k, found.get(k, {}).get(name))[0] for k in self._whose(task.clients)]
        return np.concatenate(parts)


def equal_tensors(first: Tensors, second: Tensors) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
