"""What is measured of the models of a round, on which data, and when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrecall.config import Recipe
from fedrecall.data.federation import Federation
from fedrecall.engines.base import Engine, Job, Task
from fedrecall.errors import InputError
from fedrecall.store import ClientStore
from fedrecall.vector import Tensors

PART = 1024  # samples of one evaluation task

METRICS = {"validation": "val_accuracy", "held_out": "held_out_accuracy", "test": "test_accuracy"}


class Evaluator:
    """Accuracies on the pooled validation data, on the held-out clients, and on the test set."""

    def __init__(self, recipe: Recipe, job: Job, federation: Federation) -> None:
        self.recipe, self.federation = recipe, federation
        self.algorithm, self.own_statistics = job.algorithm, job.batch_norm == "local"
        self.has_validation = len(federation.pool("validation")[1]) > 0
        self._own: dict[tuple[str, int, int], float] = {}  # of clients' own models, by split, client and version
        if any(map(recipe.forgetting.due, range(1, recipe.rounds + 1))):
            self._check_probes()

    def _check_probes(self) -> None:
        if not self.has_validation:
            raise InputError("forgetting is measured on validation data, and partition.validation is 0")
        if self.algorithm.pooled or self.algorithm.personal:
            raise InputError(
                "forgetting is what a client's training costs the shared model; with algorithm "
                f"{self.recipe.algorithm['name']!r} there is none: say forgetting.every=0"
            )

    def due(self, t: int) -> list[str]:
        """The data that the models of this round are evaluated on."""
        recipe, splits = self.recipe, []
        if t % recipe.evaluation.every == 0 or t == recipe.rounds:
            splits += ["validation"] if self.has_validation else []
            splits += ["held_out"] if self.federation.assignment.held_out else []
        if t > recipe.rounds - recipe.evaluation.test_last and self.federation.test is not None:
            splits.append("test")
        return splits

    def accuracies(
        self, t: int, engine: Engine, store: ClientStore, server: Tensors, buffers: Tensors
    ) -> dict[str, float]:
        """The pooled accuracy of the global model, or the mean over the clients' own models."""
        splits = self.due(t)
        if not splits:
            return {}
        engine.publish(t, {"w": self.algorithm.evaluated(server)}, buffers)
        if self.algorithm.personal:
            return {METRICS[split]: self._mean_over_models(t, engine, store, split) for split in splits}
        return {METRICS[split]: float(self.correct(t, engine, store, split).mean()) for split in splits}

    def correct(self, t: int, engine: Engine, store: ClientStore, split: str) -> np.ndarray:
        """For each pooled sample of a split: is the published model right?

        Where batch-norm statistics stay with the clients, each client's samples are judged with its own.
        """
        if not self.own_statistics:
            return self._judged(engine, [Task("evaluate", t, 0, split=split, stop=self._size(split))])
        ends = np.cumsum(np.bincount(self.federation.owners(), minlength=self.federation.population)).tolist()
        tasks = [
            Task("evaluate", t, 0, k, state_version=store.version(k), split=split, start=start, stop=stop)
            for k, (start, stop) in enumerate(zip([0, *ends], ends))
            if stop > start
        ]
        return self._judged(engine, tasks)

    def _size(self, split: str) -> int:
        return len(self.federation.pool(split)[1])

    def _judged(self, engine: Engine, ranges: list[Task]) -> np.ndarray:
        """The tasks' ranges one after the other, in parts that the engine can share out."""
        parts = [
            replace(task, start=start, stop=min(start + PART, task.stop))
            for task in ranges
            for start in range(task.start, task.stop, PART)
        ]
        tasks = [replace(task, order=order) for order, task in enumerate(parts)]
        return np.concatenate([result.metrics["correct"] for result in engine.run(tasks)])

    def _mean_over_models(self, t: int, engine: Engine, store: ClientStore, split: str) -> float:
        """A client's own model is evaluated once, until it trains again."""
        accuracies = []
        for client in range(self.federation.population):
            version = store.version(client)
            key = (split, client if version else -1, version)
            if key not in self._own:
                task = Task("evaluate", t, 0, key[1], state_version=version, split=split, stop=self._size(split))
                self._own[key] = float(self._judged(engine, [task]).mean())
            accuracies.append(self._own[key])
        return float(np.mean(accuracies))
