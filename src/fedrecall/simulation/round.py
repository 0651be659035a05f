"""A round: sample clients, train them, aggregate, evaluate, record."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrecall.algorithms.base import Population
from fedrecall.client.batches import LocalPlan
from fedrecall.client.forward_calls import ForwardPass
from fedrecall.client.job import Job
from fedrecall.client.lanes.decision import decide_steps
from fedrecall.client.partial_sums import Contribution
from fedrecall.client.predictions import EvaluateResult
from fedrecall.client.sums import Sums, SumTree
from fedrecall.client.tasks import TrainTask
from fedrecall.client.update import Missing
from fedrecall.data.federation import EVERYONE, Federation
from fedrecall.device import Device
from fedrecall.engines import accelerators
from fedrecall.engines.auto import choose, clients_fill_lanes, devices_for
from fedrecall.engines.engine import Engine
from fedrecall.errors import DivergedError, InputError, TooFewClientsError
from fedrecall.measure.evaluator import Evaluator
from fedrecall.measure.probe import Probes
from fedrecall.measure.training_cost import TrainingCost
from fedrecall.measure.user_metrics import UserMetric
from fedrecall.measure.watcher import Round, Watcher
from fedrecall.models.build import (
    check_outputs,
    dry_batch,
    has_statistics,
    least_samples,
    refuse_unknown_ids,
    trains_otherwise,
)
from fedrecall.models.weights import load_weights
from fedrecall.recipe.recipe import Recipe
from fedrecall.rng import stream
from fedrecall.runs.checkpoint import Checkpoint
from fedrecall.runs.client_states import StateTable
from fedrecall.simulation.aggregation import updated_buffers, updated_server
from fedrecall.simulation.compatibility import refuse_combination
from fedrecall.simulation.early_stopping import refuse_unknown_metric
from fedrecall.simulation.journal import Journal
from fedrecall.torch_state import fixed_torch_state
from fedrecall.vector import Tensors, tensors_digest


def sample_clients(seed: int, round: int, population: int, count: int) -> list[int]:
    """The clients of a round: a pure function of the seed and the round, without replacement."""
    chosen = stream(seed, "sample", round).choice(population, size=count, replace=False)
    ids: list[int] = np.sort(chosen).tolist()
    return ids


@dataclass(frozen=True)
class RoundState:
    """What the server holds between two rounds."""

    round: int  # the last one that is done
    server: Tensors
    buffers: Tensors


class Experiment:
    """What a recipe describes, ready to be carried out. Making it finds what is wrong, and writes nothing."""

    @fixed_torch_state()
    def __init__(
        self,
        recipe: Recipe,
        job: Job,
        federation: Federation,
        metrics: Mapping[str, UserMetric] | None = None,
        *,
        resumed: bool = False,
        given_weights: bool = False,
        engine: Engine | None = None,  # default: the one that the recipe names
    ) -> None:
        self.recipe, self.federation, self.algorithm = recipe, federation, job.algorithm
        self.flat = job.build_model(federation)
        self.payload = self.flat.payload
        check_outputs(self.flat, federation)
        refuse_combination(recipe, job, federation, self.flat)
        self.population = Population(federation.population, len(federation.pool("train")[1]))
        self.count = clients_per_round(recipe, federation.population)
        cost = TrainingCost(recipe.local, self.flat, federation)
        samples = max(1, self.population.samples // self.population.clients)
        step = cost.flops_per_sample * min(recipe.local.batch_size, samples)
        devices = devices_for(recipe.execution, step, self.flat.w.dtype)
        work = cost.of_client(samples)
        self.steps = decide_steps(job, federation, self.flat, on_cpu=devices[0] == "cpu")
        self.job = job = self.steps.job
        self.engine = engine or choose(
            recipe.execution, job, self.flat.module, self.count, work, recipe.rounds, devices,
            fills_lanes=clients_fill_lanes(job),
        )  # fmt: skip
        recorded = self.engine.records_steps or job.lowering is not None
        self.forward = ForwardPass(self.flat, dry_batch(federation, self.flat.w.dtype)) if recorded else None
        accelerators.refuse_precision(self.device, recipe.local.precision)
        if not self.device.is_cpu:
            refuse_unknown_ids(self.flat.module, federation)
        self.evaluator = Evaluator(recipe, job, federation, metrics)
        if recipe.stop.patience or recipe.keep == "best":
            own, has_validation = self.evaluator.user_metrics, self.evaluator.has_validation
            refuse_unknown_metric(recipe.stop, own, has_validation=has_validation)
        if recipe.init and not resumed:  # a checkpoint has what they became
            load_weights(self.flat.module, Path(recipe.init))
        given = given_weights or recipe.init is not None
        self.weights = tensors_digest(self.flat.state_dict())[:16] if given else None  # where they were given
        self.probes = Probes(recipe, federation, self.evaluator)
        self.measures: list[Watcher] = [cost, self.evaluator, self.probes]  # in the order of a line's metrics

    @property
    def digest(self) -> str:
        """The identity of the run's result."""
        return self.recipe.digest(self.engine.rounding, self.weights, self.device.rounding)

    @property
    def device(self) -> Device:
        """Where clients train; one of them, if there are several, which are alike."""
        return self.engine.devices[0]

    @property
    def meant_for(self) -> str:
        """Whose class shares the model is meant for as it is judged: "uniform", "pooled" or "given"."""
        prior = self.recipe.evaluation.prior
        if prior == "as_trained":
            return self.job.objective.meant_for
        return prior if isinstance(prior, str) else "given"

    def first_state(self, start: Checkpoint | None) -> RoundState:
        """The state before the next round: that of a checkpoint, or the initial one."""
        if start:
            return RoundState(start.round, start.server, start.buffers)
        return RoundState(0, self.algorithm.init(self.flat.w.clone()), self.flat.buffers())

    def state_before(
        self,
        round: int,
        start: Checkpoint | None,
        journal: Journal,
        states: StateTable,
        callbacks: Sequence[Watcher] = (),
    ) -> RoundState:
        """The state that a round starts from, made again from an earlier one."""
        state = self.first_state(start)
        for _ in range(state.round + 1, round):
            state, played = self.round(state, states, journal, callbacks)
            for callback in callbacks:
                callback.after(played)
        return state

    def publish(self, state: RoundState, states: StateTable, watchers: Sequence[Watcher]) -> Round:
        """The next round, up to where its clients begin: the tasks are made and the model is published."""
        t = state.round + 1
        if self.forward:
            self.forward.check(t)
        lr = self.recipe.local.rate(t, self.recipe.rounds)
        sent = self.algorithm.broadcast(state.server)
        tasks = self.tasks(t, lr, states)
        round = Round(t, lr, tasks, self.engine, states, sent, state.server, state.buffers)
        self.engine.publish(t, sent, state.buffers)
        for watcher in watchers:
            watcher.before(round)
        return round

    def round(
        self, state: RoundState, states: StateTable, journal: Journal, callbacks: Sequence[Watcher] = ()
    ) -> tuple[RoundState, Round]:
        """The round after a state: the state after it, and all that was seen of it."""
        clock, watchers = [time.perf_counter()], [*self.measures, *callbacks]
        round = self.publish(state, states, watchers)
        tree, accepted, bytes_up = SumTree(self._compared_with(round)), dict[int, int](), 0
        for result in self._results(round, callbacks, looked_at=tree.sent is not None):  # client updates
            if isinstance(result, Missing):
                journal.miss(round.number, result.task.client, result.reason)
                round.missing.append(result.task.client)
                continue
            good, dropped = result.finite_part(self.algorithm)
            journal.drop(round.number, dropped, stop=self.recipe.bad_updates == "stop")
            round.dropped += dropped
            versions = result.states()
            for client in dropped:
                states.discard(client, versions.pop(client, 0))
            if good is None:
                continue
            good.add_to(tree, self.algorithm)
            bytes_up += good.bytes(self.payload)
            accepted |= versions
            for watcher in watchers:
                watcher.result(round, good)
        sums = tree.total()
        clock.append(time.perf_counter())

        self._refuse_few(round)
        if not sums.samples:
            raise DivergedError(f"no client's update of round {round.number} was finite")
        round.updates = sums.updates
        round.line = self._line(round, sums, bytes_up)
        round.server = updated_server(self.algorithm, state.server, sums, self.population)  # server update
        round.buffers = updated_buffers(state.buffers, sums)
        states.propose(accepted)
        if not all(bool(tensor.isfinite().all()) for tensor in round.server.values()):
            raise DivergedError(f"the global model was no longer finite after round {round.number}")
        clock.append(time.perf_counter())

        for watcher in self.measures:
            watcher.after(round)
        clock.append(time.perf_counter())
        for note in self.engine.notes:
            journal.warn(round.number, note)
        journal.record(round, self.probes.arrays, clock)
        states.settle()
        return RoundState(round.number, round.server, round.buffers), round

    def _results(
        self, round: Round, callbacks: Sequence[Watcher], *, looked_at: bool
    ) -> Iterator[Contribution | Missing]:
        """What the clients give back: one by one, where somebody wants to see each."""
        if any(callback.wants_each for callback in callbacks):
            for result in self.engine.run(round.tasks):
                assert not isinstance(result, EvaluateResult)
                yield result
        else:
            yield from self.engine.train(round.tasks, looked_at=looked_at)

    def _compared_with(self, round: Round) -> Tensors | None:
        """What updates are compared with, in rounds in which they are looked at."""
        return round.sent if self.recipe.evaluates(round.number) else None

    def _line(self, round: Round, sums: Sums, bytes_up: int) -> dict[str, Any]:
        """The first entries of the round's line of metrics."""
        left_out = {EVERYONE, *round.dropped, *round.missing}
        clients = [task.client for task in round.tasks if task.client not in left_out]
        return {
            "round": round.number,
            "clients": clients,
            "lr": round.lr,
            "train_loss": sums.mean_loss(),
            **self._traffic(len(round.tasks), bytes_up, round.sent, round.buffers),
        }

    def _refuse_few(self, round: Round) -> None:
        """Too many clients are missing for the round to count."""
        answered, least = len(round.tasks) - len(round.missing), self.recipe.execution.min_clients
        if round.missing and answered < least:
            raise TooFewClientsError(
                f"{answered} of {len(round.tasks)} clients answered in round {round.number}, and "
                f"execution.min_clients is {least}"
            )

    def _traffic(self, clients: int, up: int, broadcast: Tensors, buffers: Tensors) -> dict[str, int]:
        """Bytes of the tensors that travel in a round, all clients together."""
        if self.algorithm.pooled or self.algorithm.personal:  # the bounds exchange nothing
            return {"bytes_up": 0, "bytes_down": 0}
        down = self.payload.bytes(broadcast, {} if self.job.own_buffers else buffers)
        return {"bytes_up": up, "bytes_down": clients * down}

    def tasks(self, t: int, lr: float, states: StateTable) -> list[TrainTask]:
        """The round's training, a task a client, in the order of the sum."""
        clients = sample_clients(self.recipe.seed, t, self.federation.population, self.count)
        if self.algorithm.pooled:
            return [TrainTask(t, 0, EVERYONE, lr, steps=sum(map(self._steps_of, clients)))]
        # The largest first, so that no worker idles at the end; the order is the same on every engine.
        ids = np.array(clients)
        places = np.argsort(-self.federation.train_sizes(ids), kind="stable")
        version = states.versions.get
        return [
            TrainTask(t, order, client, lr, 0, version(client, 0))
            for order, client in enumerate(ids[places].tolist())
        ]

    def _steps_of(self, client: int) -> int:
        samples = len(self.federation.train_indices(client))
        return LocalPlan.of(self.recipe.local, samples, least_samples(self.flat.module)).steps

    def warnings(self, one_class_clients: int) -> Iterator[str]:
        """Sentences that the user should know before trusting the result."""
        if self.job.knows_validation and self.federation.knows_labels:  # the card counts training labels alone
            known = (self.federation.labels(k, with_validation=True) for k in range(self.federation.population))
            one_class_clients = sum(int((labels.counts > 0).sum()) == 1 for labels in known)
        note = self.job.objective.note(one_class_clients, self.federation.population)
        # A model in training that differs from its teacher in eval mode is pulled towards it from the first step.
        taught = "teacher" in self.job.objective.needs and trains_otherwise(self.flat.module)
        if note and not self.algorithm.pooled and not taught:
            yield note
        shares_known = self.federation.knows_labels and not self.algorithm.personal
        if self.recipe.evaluation.prior == "as_trained" and shares_known:
            yield from self.job.objective.note_on_prior(self.federation.pooled_shares)
        if (
            self.count == 1
            and self.federation.population > 1
            and not (self.algorithm.pooled or self.algorithm.personal)
        ):
            yield (
                f"each round has one of {self.federation.population} clients, so nothing is averaged: set "
                "clients_per_round or participation"
            )
        wanted, last = self.recipe.evaluation.test_last, self.recipe.tested_rounds
        if wanted is not None and wanted > self.recipe.rounds:
            yield (
                f"evaluation.test_last is {wanted}, but there are {self.recipe.rounds} rounds: the final accuracy "
                f"is {'that of the last one' if last == 1 else f'over the last {last}'}"
            )
        late = [t for t in self.recipe.forgetting.rounds or () if t > self.recipe.rounds]
        if late:
            yield f"forgetting.rounds has {late}, but there are {self.recipe.rounds} rounds"
        heeds_time = self.engine.replaces_workers or self.engine.leaves_out_clients
        if self.recipe.execution.client_timeout is not None and not heeds_time:
            yield f"execution.client_timeout has no effect: the engine is {self.engine.name!r}, without workers"
        for key in ("ray_address", "resources"):
            if getattr(self.recipe.execution, key) is not None and not self.engine.elsewhere:
                yield f"execution.{key} has no effect: the engine is {self.engine.name!r}, on this machine"
        if self.steps.note:
            yield self.steps.note
        yield from self._device_warnings()
        if self.recipe.batch_norm == "local" and has_statistics(self.flat.module) and not self.algorithm.personal:
            yield "batch_norm is local: model.safetensors has the initial statistics, each client keeps its own"

    def _device_warnings(self) -> Iterator[str]:
        execution, local = self.recipe.execution, self.recipe.local
        if self.device.is_cpu and local.precision == "bfloat16" and not torch.cpu._is_avx512_bf16_supported():
            yield "local.precision is bfloat16, which this CPU has no instructions for: it is many times slower"
        if self.device.is_cpu and local.precision == "float16":
            yield "local.precision is float16, which is for GPUs: on a CPU it is slower than float32"
        if execution.workers_per_device > 1 and max(shared.workers for shared in self.engine.devices) == 1:
            yield (
                f"execution.workers_per_device has no effect: the engine is {self.engine.name!r}, with "
                f"{self.engine.workers} workers on {self.device.name}"
            )


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
