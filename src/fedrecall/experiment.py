"""The round loop: sample clients, train them, aggregate, evaluate, record."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedrecall import checkpoint
from fedrecall.aggregation import Sums, finite_part
from fedrecall.algorithms.base import Population
from fedrecall.building import build, check_outputs, has_statistics, least_samples
from fedrecall.checkpoint import Checkpoint
from fedrecall.combination import refuse_combination
from fedrecall.config import Recipe
from fedrecall.data.card import card
from fedrecall.data.federation import EVERYONE, Federation
from fedrecall.engines.base import Job, Task
from fedrecall.engines.choice import choose
from fedrecall.errors import DivergedError, InputError, Interrupted
from fedrecall.evaluation import Evaluator
from fedrecall.local import steps_per_epoch
from fedrecall.local_work import LocalWork, Updates, flops_per_sample
from fedrecall.own_metrics import Metric
from fedrecall.probes import Probes
from fedrecall.record import RunFolder, environment, read_lines
from fedrecall.rng import stream
from fedrecall.store import ClientStore
from fedrecall.summary import summarise
from fedrecall.vector import Tensors

Watch = Callable[[dict[str, Any]], None]


def sample_clients(seed: int, round: int, population: int, count: int) -> list[int]:
    """The clients of a round: a pure function of the seed and the round, without replacement."""
    chosen = stream(seed, "sample", round).choice(population, size=count, replace=False)
    return sorted(chosen.tolist())


class Experiment:
    """One run of a recipe. Making it finds what is wrong; nothing is written before `run`."""

    def __init__(
        self, recipe: Recipe, job: Job, federation: Federation, metrics: Mapping[str, Metric] | None = None
    ) -> None:
        self.recipe, self.job, self.federation = recipe, job, federation
        self.algorithm = job.algorithm
        self.flat = build(job, federation)
        check_outputs(self.flat, federation)
        refuse_combination(recipe, job, federation, self.flat)
        self.population = Population(federation.population, len(federation.pool("train")[1]))
        self.count = clients_per_round(recipe, federation.population)
        steps = recipe.rounds * self.count * self._steps_of(0)
        self.engine = choose(recipe.execution, job, self.flat.module, self.count, steps)
        self.digest = recipe.digest(self.engine.name)
        self.evaluator = Evaluator(recipe, job, federation, metrics)
        self.probes = Probes(recipe, federation, self.evaluator)
        self.flops_per_sample = flops_per_sample(self.flat, federation)

    def run(
        self,
        folder: RunFolder,
        watch: Watch | None = None,
        start: Checkpoint | None = None,
        notes: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Run all rounds in an empty folder, or those after a checkpoint; `watch` is shown each line of metrics.

        Returns the summary. Whatever stops it, the rounds that are done stay resumable.
        """
        self.folder, self.warnings, self.dropped = folder, list[str](), 0
        folder.lock()
        began = time.perf_counter()
        store = ClientStore(folder.path / "clients")
        self.done = self._first(start)
        lines = self._go_on(store) if start else self._describe()
        for note in notes:
            self._warn(self.done.round, note)
        self.saved, saved_at = self.done.round, began
        ending = "failed"
        try:
            self.engine.open(self.job, self.federation, store)
        except BaseException:
            folder.close()
            raise
        try:
            for t in range(self.done.round + 1, self.recipe.rounds + 1):
                self.done, line = self._round(t, store, self.done)
                lines.append(line)
                if t == self.recipe.rounds or self.recipe.checkpoint.due(t, time.perf_counter() - saved_at):
                    self._save(store)
                    saved_at = time.perf_counter()
                if watch:
                    watch(line)
            ending = "finished"
        except KeyboardInterrupt:
            ending = "interrupted"
            raise Interrupted(
                f"stopped after round {self.done.round}; go on with: fedrecall resume {folder.path}"
            ) from None
        except DivergedError as error:
            ending = "diverged"
            raise DivergedError(f"{error}; the last good state is that of round {self.done.round}") from None
        finally:
            self.engine.close()
            store.roll_back()  # of a round that was not done
            if self.done.round > self.saved:
                self._save(store)
            summary = self._summary(ending, lines, time.perf_counter() - began)
            folder.close()
        return summary

    def _first(self, start: Checkpoint | None) -> Checkpoint:
        """The state before the next round: that of a checkpoint, or the initial one."""
        if start:
            return start
        server, buffers = self.algorithm.init(self.flat.w.clone()), self.flat.buffers()
        return Checkpoint(0, server, buffers, {}, self.digest, self.recipe.tree())

    def _go_on(self, store: ClientStore) -> list[dict[str, Any]]:
        """Put the folder back to the state of the checkpoint; the lines of metrics up to it."""
        round, folder = self.done.round, self.folder
        kept = checkpoint.drop_after(folder.path / "checkpoints", round)
        store.restore([point.versions for point in kept])
        folder.cut_back(round)
        folder.event("resume", round, f"resumed after round {round}")
        self.evaluator.recall(read_lines(folder.path / "clients.jsonl"))
        return read_lines(folder.path / "metrics.jsonl")

    def _save(self, store: ClientStore) -> None:
        point = replace(self.done, versions=store.versions, recipe_sha256=self.digest, recipe=self.recipe.tree())
        checkpoint.save(self.folder.path / "checkpoints", point)
        store.keep(checkpoint.KEPT)
        self.saved = self.done.round

    def _summary(self, ending: str, lines: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
        """How the run ended, and its model if it is done."""
        if ending == "finished" and not self.algorithm.personal:  # else there is no one model
            self.flat.load(self.algorithm.evaluated(self.done.server), self.done.buffers)
            self.folder.save_model(self.flat.state_dict())
        summary = summarise(lines, self.recipe, seconds) | {"status": ending, "rounds_done": self.done.round}
        summary |= {"engine": self.engine.name, "workers": self.engine.workers, "recipe_sha256": self.digest}
        if self.dropped:
            self._warn(self.done.round, f"{self.dropped} updates were not finite and left out: see events.jsonl")
        summary |= {"dropped_updates": self.dropped, "warnings": self.warnings}
        self.folder.write_json("summary.json", summary)
        return summary

    def _round(self, t: int, store: ClientStore, before: Checkpoint) -> tuple[Checkpoint, dict[str, Any]]:
        """One round: the state after it, and the line of metrics."""
        clock = [time.perf_counter()]
        engine, server, buffers = self.engine, before.server, before.buffers
        lr = self.recipe.local.rate(t, self.recipe.rounds)
        tasks = self._tasks(t, lr, store)
        broadcast = self.algorithm.broadcast(server)
        engine.publish(t, broadcast, buffers)
        probe = self.probes.begin(t, engine, store, tasks)

        sums, work, states, dropped = Sums(), self._work(t, broadcast), dict[int, int](), list[int]()
        for result in engine.run(probe.tasks if probe else tasks):  # client updates
            self._warn(t, result.metrics.get("note"))
            if probe:
                probe.add(result)
            good, bad = finite_part(result)
            dropped += self._drop(t, bad)
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
            self.folder.save_forgetting(t, arrays)
            line |= forgotten
        clock.append(time.perf_counter())
        self._record(line, by_client, clock)
        store.settle()
        return replace(before, round=t, server=server, buffers=buffers), line

    def _drop(self, t: int, clients: list[int]) -> list[int]:
        """Leave clients out of the round, and say so."""
        for client in clients:
            message = f"the update of client {client} in round {t} is not finite"
            if self.recipe.bad_updates == "stop":
                raise DivergedError(f"{message} (bad_updates is 'stop')")
            self.folder.event("dropped", t, message)
        self.dropped += len(clients)
        return clients

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

    def _tasks(self, t: int, lr: float, store: ClientStore) -> list[Task]:
        """The round's training, a task a client, in the order of the sum."""
        clients = sample_clients(self.recipe.seed, t, self.federation.population, self.count)
        if self.algorithm.pooled:
            return [Task("train", t, 0, EVERYONE, lr, steps=sum(map(self._steps_of, clients)))]
        # The largest first, so that no worker idles at the end; the order is the same on every engine.
        clients.sort(key=lambda client: -len(self.federation.train_indices(client)))
        return [
            Task("train", t, order, client, lr, state_version=store.version(client))
            for order, client in enumerate(clients)
        ]

    def _steps_of(self, client: int) -> int:
        local, samples = self.recipe.local, len(self.federation.train_indices(client))
        return local.steps or (local.epochs or 0) * steps_per_epoch(
            samples, local, least_samples(self.flat.module)
        )

    def _warn(self, t: int, warning: str | None) -> None:
        """Once for each thing that the user should know."""
        if warning and warning not in self.warnings:
            self.warnings.append(warning)
            self.folder.event("warning", t, warning)

    def _describe(self) -> list[dict[str, Any]]:
        """Write what will be run; what the user should know of it before trusting it."""
        federation, folder = self.federation, self.folder
        partition = card(federation.assignment, federation.train.y, federation.num_classes, federation.class_names)
        folder.write_text("recipe.yaml", self.recipe.yaml())
        folder.write_json("environment.json", environment())
        federation.assignment.save(folder.path, federation.training_counts())
        folder.write_json("partition.json", partition)
        for warning in self._warnings(partition["one_class_clients"]["count"]):
            self._warn(0, warning)
        return []

    def _warnings(self, one_class_clients: int) -> Iterator[str]:
        note = self.job.objective.note(one_class_clients, self.federation.population)
        if note and not self.algorithm.pooled:
            yield note
        late = [t for t in self.recipe.forgetting.rounds or () if t > self.recipe.rounds]
        if late:
            yield f"forgetting.rounds has {late}, but there are {self.recipe.rounds} rounds"
        if self.recipe.local.precision == "bfloat16" and not torch.cpu._is_avx512_bf16_supported():
            yield "local.precision is bfloat16, which this CPU has no instructions for: it is many times slower"
        if self.recipe.batch_norm == "local" and has_statistics(self.flat.module) and not self.algorithm.personal:
            yield "batch_norm is local: model.safetensors has the initial statistics, each client keeps its own"

    def _record(self, line: dict[str, Any], by_client: dict[str, Any], clock: list[float]) -> None:
        parts = dict(zip(("train", "aggregate", "evaluate"), (b - a for a, b in itertools.pairwise(clock))))
        seconds = {key: round(value, 6) for key, value in {"seconds": clock[-1] - clock[0], **parts}.items()}
        self.folder.append("metrics.jsonl", line)
        if by_client:
            self.folder.append("clients.jsonl", by_client)
        self.folder.append("timings.jsonl", {"round": line["round"], **seconds})


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
