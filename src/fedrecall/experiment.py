"""The round loop: sample clients, train them, aggregate, evaluate, record."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedrecall import checkpoint
from fedrecall import forgetting as forgot
from fedrecall.algorithms.base import Algorithm
from fedrecall.config import Recipe
from fedrecall.data.card import card
from fedrecall.data.federation import Federation
from fedrecall.engines import choose
from fedrecall.engines.base import Engine, Job, Result, Task
from fedrecall.errors import InputError
from fedrecall.local import build, check_outputs, steps_per_epoch
from fedrecall.record import RunFolder, environment
from fedrecall.rng import stream
from fedrecall.store import ClientStore
from fedrecall.vector import Tensors

EVALUATION_PART = 1024  # samples of one evaluation task

Watch = Callable[[dict[str, Any]], None]


def sample_clients(seed: int, round: int, population: int, count: int) -> list[int]:
    """The clients of a round: a pure function of the seed and the round, without replacement."""
    chosen = stream(seed, "sample", round).choice(population, size=count, replace=False)
    return sorted(chosen.tolist())


@dataclass
class Sums:
    """Weighted float64 sums over the clients of a round, in task order."""

    tensors: Tensors = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    floats: torch.Tensor | None = None  # buffers, weighted by the samples
    counters: torch.Tensor | None = None
    samples: int = 0
    loss: float = 0.0

    def add(self, result: Result, algorithm: Algorithm) -> None:
        for name, tensor in result.sent.items():
            weight = algorithm.weight(name, result.n, result.steps)
            self.tensors[name] = added(self.tensors.get(name), tensor, weight)
            self.totals[name] = self.totals.get(name, 0.0) + weight
        counters = result.buffers["i"]
        self.counters = counters.clone() if self.counters is None else torch.maximum(self.counters, counters)
        self.floats = added(self.floats, result.buffers["b"], result.n)
        self.samples += result.n
        self.loss += result.n * result.metrics["loss"]

    def buffers(self, dtype: torch.dtype) -> Tensors:
        """Float buffers are means, counters the largest."""
        assert self.floats is not None
        assert self.counters is not None
        return {"b": (self.floats / self.samples).to(dtype), "i": self.counters}

    def mean_loss(self) -> float:
        return self.loss / self.samples


def added(total: torch.Tensor | None, tensor: torch.Tensor, weight: float) -> torch.Tensor:
    if total is None:
        total = torch.zeros_like(tensor, dtype=torch.float64)
    return total.add_(tensor, alpha=weight)


class Experiment:
    """One run of a recipe. Making it finds what is wrong; nothing is written before `run`."""

    def __init__(self, recipe: Recipe, job: Job, federation: Federation) -> None:
        self.recipe, self.job, self.federation = recipe, job, federation
        self.algorithm = job.algorithm
        self.flat = build(job, federation)
        check_outputs(self.flat, federation)
        self.count = clients_per_round(recipe, federation.population)
        self.has_validation = len(federation.pool("validation")[1]) > 0
        self.owners = federation.owners()
        if not self.has_validation and any(map(recipe.forgetting.due, range(1, recipe.rounds + 1))):
            raise InputError("forgetting is measured on validation data, and partition.validation is 0")

    def run(self, folder: RunFolder, watch: Watch | None = None) -> dict[str, Any]:
        """Run all rounds in an empty folder; `watch` is shown each line of metrics. Returns the summary."""
        began = time.perf_counter()
        self.folder = folder
        self._describe()
        store = ClientStore(folder.path / "clients")
        engine = choose(self.recipe.execution, self.count, self._local_steps())
        server, buffers = self.algorithm.init(self.flat.w.clone()), self.flat.buffers()
        lines, saved = [], began
        engine.open(self.job, self.federation, store)
        try:
            for t in range(1, self.recipe.rounds + 1):
                server, buffers, line = self._round(t, engine, store, server, buffers)
                lines.append(line)
                if t == self.recipe.rounds or self.recipe.checkpoint.due(t, time.perf_counter() - saved):
                    self._checkpoint(t, server, buffers, store)
                    saved = time.perf_counter()
                if watch:
                    watch(line)
        finally:
            engine.close()
            folder.close()
        self.flat.load(self.algorithm.evaluated(server), buffers)
        folder.save_model(self.flat.state_dict())
        summary = summarise(lines, self.recipe, time.perf_counter() - began) | {"warnings": self.warnings}
        folder.write_json("summary.json", summary)
        return summary

    def _local_steps(self) -> int:
        """About how many steps the clients take in the whole run."""
        federation, local = self.federation, self.recipe.local
        samples = int((federation.assignment.client >= 0).sum()) // len(federation)
        steps = local.steps or (local.epochs or 0) * steps_per_epoch(max(samples, 1), local)
        return self.recipe.rounds * self.count * steps

    def _describe(self) -> None:
        """What was run, before it runs."""
        federation, folder = self.federation, self.folder
        partition = card(federation.assignment, federation.train.y, federation.num_classes, federation.class_names)
        folder.write_text("recipe.yaml", self.recipe.yaml())
        folder.write_json("environment.json", environment())
        federation.assignment.save(folder.path)
        folder.write_json("partition.json", partition)
        self.warnings = list(self._notes(partition["one_class_clients"]["count"]))
        for note in self.warnings:
            folder.event("warning", 0, note)

    def _notes(self, one_class_clients: int) -> Iterator[str]:
        """What a user should know of this run before trusting it."""
        note = self.job.objective.note(one_class_clients, self.federation.population)
        if note:
            yield note
        late = [t for t in self.recipe.forgetting.rounds or () if t > self.recipe.rounds]
        if late:
            yield f"forgetting.rounds has {late}, but there are {self.recipe.rounds} rounds"

    def _round(
        self, t: int, engine: Engine, store: ClientStore, server: Tensors, buffers: Tensors
    ) -> tuple[Tensors, Tensors, dict[str, Any]]:
        clock = [time.perf_counter()]
        clients = sample_clients(self.recipe.seed, t, self.federation.population, self.count)
        # The largest first, so that no worker idles at the end; the order is the same on every engine.
        clients.sort(key=lambda client: -len(self.federation.train_indices(client)))
        lr = self.recipe.local.rate(t, self.recipe.rounds)
        probe = self.recipe.forgetting.due(t)

        engine.publish(t, self.algorithm.broadcast(server), buffers)
        before = self._evaluate(engine, t, "validation") if probe else None
        tasks = [
            Task("train", t, order, client, lr, store.version(client), probe)
            for order, client in enumerate(clients)
        ]
        sums, after = Sums(), list[np.ndarray]()
        for result in engine.run(tasks):
            sums.add(result, self.algorithm)
            store.commit({result.task.client: result.state})
            if probe:
                after.append(result.metrics["correct"])
        clock.append(time.perf_counter())

        server = self._aggregate(server, sums)
        buffers = sums.buffers(server["w"].dtype)
        clock.append(time.perf_counter())

        line: dict[str, Any] = {"round": t, "clients": clients, "lr": lr, "train_loss": sums.mean_loss()}
        line |= self._accuracies(t, engine, server, buffers)
        if before is not None:
            line |= self._forgetting(t, clients, before, np.stack(after))
        clock.append(time.perf_counter())
        self._record(line, clock)
        return server, buffers, line

    def _checkpoint(self, t: int, server: Tensors, buffers: Tensors, store: ClientStore) -> None:
        folder = self.folder.path / "checkpoints"
        checkpoint.save(folder, t, server, buffers, store.versions, self.recipe.digest())
        store.keep(checkpoint.KEPT)

    def _aggregate(self, server: Tensors, sums: Sums) -> Tensors:
        """The server update, rounded once to the model's precision."""
        dtype = server["w"].dtype
        new = self.algorithm.aggregate(server, sums.tensors, sums.totals, self.federation.population)
        return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in new.items()}

    def _accuracies(self, t: int, engine: Engine, server: Tensors, buffers: Tensors) -> dict[str, float]:
        recipe = self.recipe
        splits = []
        if t % recipe.evaluation.every == 0 or t == recipe.rounds:
            splits += ["validation"] if self.has_validation else []
            splits += ["held_out"] if self.federation.assignment.held_out else []
        if t > recipe.rounds - recipe.evaluation.test_last and self.federation.test is not None:
            splits.append("test")
        if not splits:
            return {}
        engine.publish(t, {"w": self.algorithm.evaluated(server)}, buffers)
        names = {"validation": "val_accuracy", "held_out": "held_out_accuracy", "test": "test_accuracy"}
        return {names[split]: float(self._evaluate(engine, t, split).mean()) for split in splits}

    def _evaluate(self, engine: Engine, t: int, split: str) -> np.ndarray:
        """For each pooled sample of a split: is the published model right?"""
        total = len(self.federation.pool(split)[1])
        starts = range(0, total, EVALUATION_PART)
        tasks = [
            Task("evaluate", t, order, split=split, start=start, stop=min(start + EVALUATION_PART, total))
            for order, start in enumerate(starts)
        ]
        return np.concatenate([result.metrics["correct"] for result in engine.run(tasks)])

    def _forgetting(self, t: int, clients: list[int], before: np.ndarray, after: np.ndarray) -> dict[str, float]:
        models, population = np.array(clients), self.federation.population
        accuracy_before = forgot.client_accuracy(before, self.owners, population)
        accuracy_after = np.stack([forgot.client_accuracy(row, self.owners, population) for row in after])
        self.folder.save_forgetting(t, accuracy_before, accuracy_after, models)
        matrix = forgot.forgetting_matrix(accuracy_before, accuracy_after)
        return {
            "forgetting": forgot.mean_forgetting(matrix, models),
            "learned": forgot.mean_learned(matrix, models),
        }

    def _record(self, line: dict[str, Any], clock: list[float]) -> None:
        train, aggregate, evaluate = (round(b - a, 6) for a, b in itertools.pairwise(clock))
        self.folder.append("metrics.jsonl", line)
        self.folder.append(
            "timings.jsonl",
            {
                "round": line["round"],
                "seconds": round(clock[-1] - clock[0], 6),
                "train": train,
                "aggregate": aggregate,
                "evaluate": evaluate,
            },
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


def summarise(lines: Iterable[dict[str, Any]], recipe: Recipe, seconds: float) -> dict[str, Any]:
    """What a run came to. The final accuracy is the mean test accuracy of the last rounds."""
    lines = list(lines)

    def measured(key: str) -> list[float]:
        return [line[key] for line in lines if key in line and np.isfinite(line[key])]

    def mean(key: str) -> float | None:
        return float(np.mean(measured(key))) if measured(key) else None

    return {
        "status": "finished",
        "rounds": recipe.rounds,
        "final_accuracy": mean("test_accuracy"),
        "final_accuracy_rounds": len(measured("test_accuracy")),
        "last_val_accuracy": measured("val_accuracy")[-1] if measured("val_accuracy") else None,
        "forgetting": mean("forgetting"),
        "learned": mean("learned"),
        "recipe_sha256": recipe.digest(),
        "seconds": round(seconds, 3),
    }
