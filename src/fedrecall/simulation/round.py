"""A round: sample clients, train them, aggregate, evaluate, record."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedrecall.algorithms.base import Population
from fedrecall.client.batches import steps_per_epoch
from fedrecall.client.work import Job, Task
from fedrecall.data.federation import EVERYONE, Federation
from fedrecall.engines.auto import choose
from fedrecall.errors import DivergedError, InputError
from fedrecall.measure.evaluator import Evaluator
from fedrecall.measure.probe import Probes
from fedrecall.measure.training_cost import LocalWork, Updates, flops_per_sample
from fedrecall.measure.user_metrics import Metric
from fedrecall.models.build import check_outputs, has_statistics, least_samples
from fedrecall.models.weights import load_weights
from fedrecall.recipe.recipe import Recipe
from fedrecall.rng import stream
from fedrecall.runs.checkpoint import Checkpoint
from fedrecall.runs.client_states import ClientStore
from fedrecall.runs.folder import RunFolder
from fedrecall.simulation.aggregation import Sums, finite_part
from fedrecall.simulation.compatibility import refuse_combination
from fedrecall.simulation.early_stopping import refuse_unknown_metric
from fedrecall.simulation.journal import Journal
from fedrecall.vector import Tensors


def sample_clients(seed: int, round: int, population: int, count: int) -> list[int]:
    """The clients of a round: a pure function of the seed and the round, without replacement."""
    chosen = stream(seed, "sample", round).choice(population, size=count, replace=False)
    return sorted(chosen.tolist())


class Experiment:
    """What a recipe describes, ready to be carried out. Making it finds what is wrong, and writes nothing."""

    def __init__(
        self,
        recipe: Recipe,
        job: Job,
        federation: Federation,
        metrics: Mapping[str, Metric] | None = None,
        *,
        resumed: bool = False,
    ) -> None:
        self.recipe, self.job, self.federation = recipe, job, federation
        self.algorithm = job.algorithm
        self.flat = job.build_model(federation)
        check_outputs(self.flat, federation)
        refuse_combination(recipe, job, federation, self.flat)
        self.population = Population(federation.population, len(federation.pool("train")[1]))
        self.count = clients_per_round(recipe, federation.population)
        steps = recipe.rounds * self.count * self._steps_of(0)
        self.engine = choose(recipe.execution, job, self.flat.module, self.count, steps)
        self.digest = recipe.digest(self.engine.name)
        self.evaluator = Evaluator(recipe, job, federation, metrics)
        if recipe.stop.patience or recipe.keep == "best":
            own, has_validation = self.evaluator.own_metrics, self.evaluator.has_validation
            refuse_unknown_metric(recipe.stop, own, has_validation=has_validation)
        if recipe.init and not resumed:  # a checkpoint has what they became
            load_weights(self.flat.module, Path(recipe.init))
        self.probes = Probes(recipe, federation, self.evaluator)
        self.flops_per_sample = flops_per_sample(self.flat, federation)

    def first_state(self, start: Checkpoint | None) -> Checkpoint:
        """The state before the next round: that of a checkpoint, or the initial one."""
        if start:
            return start
        server, buffers = self.algorithm.init(self.flat.w.clone()), self.flat.buffers()
        return Checkpoint(0, server, buffers, {}, self.digest, self.recipe.tree())

    def state_before(
        self, round: int, start: Checkpoint | None, folder: RunFolder, store: ClientStore
    ) -> Checkpoint:
        """The state that a round starts from, made again from an earlier one. `folder` gets the records."""
        journal, point = Journal(folder), self.first_state(start)
        for t in range(point.round + 1, round):
            point, _ = self.round(t, store, point, journal)
        return point

    def round(
        self, t: int, store: ClientStore, before: Checkpoint, journal: Journal
    ) -> tuple[Checkpoint, dict[str, Any]]:
        """One round: the state after it, and the line of metrics."""
        clock = [time.perf_counter()]
        engine, server, buffers = self.engine, before.server, before.buffers
        lr = self.recipe.local.rate(t, self.recipe.rounds)
        tasks = self.tasks(t, lr, store)
        broadcast = self.algorithm.broadcast(server)
        engine.publish(t, broadcast, buffers)
        probe = self.probes.begin(t, engine, store, tasks)

        sums, work, states, dropped = Sums(), self._work(t, broadcast), dict[int, int](), list[int]()
        for result in engine.run(probe.tasks if probe else tasks):  # client updates
            journal.warn(t, result.metrics.get("note"))
            if probe:
                probe.add(result)
            good, bad = finite_part(result, self.algorithm)
            dropped += journal.dropped(t, bad, stop=self.recipe.bad_updates == "stop")
            if good:
                sums.add(good, self.algorithm)
                work.add(good)
                states[good.task.client] = good.state
            else:
                store.discard(result.task.client, result.state)
        clock.append(time.perf_counter())

        if not sums.samples:
            raise DivergedError(f"no client's update of round {t} was finite")
        clients = [task.client for task in tasks if task.client not in (EVERYONE, *dropped)]
        line: dict[str, Any] = {"round": t, "clients": clients, "lr": lr}
        line |= {"train_loss": sums.mean_loss(), **self._traffic(len(tasks), sums.bytes, broadcast, buffers)}
        line |= work.metrics()
        server = sums.server(self.algorithm, server, self.population)  # server update
        buffers = sums.buffers(buffers)
        store.propose(states)
        if not all(bool(state.isfinite().all()) for state in server.values()):
            raise DivergedError(f"the global model was no longer finite after round {t}")
        clock.append(time.perf_counter())

        measured, by_client = self.evaluator.measure(t, engine, store, server, buffers)
        line |= measured
        if probe:
            arrays, forgotten = probe.finish(engine, store, server, buffers)
            journal.folder.save_forgetting(t, arrays)
            line |= forgotten
        clock.append(time.perf_counter())
        journal.record(line, by_client, clock)
        store.settle()
        return replace(before, round=t, server=server, buffers=buffers), line

    def _work(self, t: int, broadcast: Tensors) -> LocalWork:
        updates = Updates() if self.evaluator.evaluates(t) else None
        least = least_samples(self.flat.module)
        return LocalWork(self.algorithm, self.recipe.local, least, self.flops_per_sample, broadcast, updates)

    def _traffic(self, clients: int, up: int, broadcast: Tensors, buffers: Tensors) -> dict[str, int]:
        """Bytes of the tensors that travel in a round, all clients together."""
        if self.algorithm.pooled or self.algorithm.personal:  # the bounds exchange nothing
            return {"bytes_up": 0, "bytes_down": 0}
        sent = broadcast if self.job.own_buffers else {**broadcast, **buffers}
        return {"bytes_up": up, "bytes_down": clients * sum(tensor.nbytes for tensor in sent.values())}

    def tasks(self, t: int, lr: float, store: ClientStore) -> list[Task]:
        """The round's training, a task a client, in the order of the sum."""
        clients = sample_clients(self.recipe.seed, t, self.federation.population, self.count)
        if self.algorithm.pooled:
            return [Task("train", t, 0, EVERYONE, lr, steps=sum(map(self._steps_of, clients)))]
        # The largest first, so that no worker idles at the end; the order is the same on every engine.
        clients.sort(key=lambda client: -self.federation.train_size(client))
        return [
            Task("train", t, order, client, lr, state_version=store.version(client))
            for order, client in enumerate(clients)
        ]

    def _steps_of(self, client: int) -> int:
        local, samples = self.recipe.local, len(self.federation.train_indices(client))
        return local.steps or (local.epochs or 0) * steps_per_epoch(
            samples, local, least_samples(self.flat.module)
        )

    def warnings(self, one_class_clients: int) -> Iterator[str]:
        """What the user should know before trusting the result."""
        note = self.job.objective.note(one_class_clients, self.federation.population)
        if note and not self.algorithm.pooled:
            yield note
        late = [t for t in self.recipe.forgetting.rounds or () if t > self.recipe.rounds]
        if late:
            yield f"forgetting.rounds has {late}, but there are {self.recipe.rounds} rounds"
        if self.recipe.execution.client_timeout is not None and self.engine.name != "processes":
            yield f"execution.client_timeout has no effect: the engine is {self.engine.name!r}, without workers"
        if self.recipe.local.precision == "bfloat16" and not torch.cpu._is_avx512_bf16_supported():
            yield "local.precision is bfloat16, which this CPU has no instructions for: it is many times slower"
        if self.recipe.batch_norm == "local" and has_statistics(self.flat.module) and not self.algorithm.personal:
            yield "batch_norm is local: model.safetensors has the initial statistics, each client keeps its own"


def clients_per_round(recipe: Recipe, population: int) -> int:
    """round(K p), at least one."""
    if recipe.clients_per_round is None:
        assert recipe.participation is not None
        return max(1, round(population * recipe.participation))
    if recipe.clients_per_round > population:
        raise InputError(
            f"clients_per_round is {recipe.clients_per_round}, but only {population} clients may train"
        )
    return recipe.clients_per_round
