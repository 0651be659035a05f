"""Probes: at chosen rounds, every model of the round on every client's validation data.

A probe only watches. It is one forward pass over the pooled validation data for each model: the global one before
the round, each client's in its own training task (nowhere else is there such a model), and the new global one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedrecall.client.predict import pooled
from fedrecall.client.work import Result, Task
from fedrecall.data.federation import Federation
from fedrecall.engines.engine import Engine
from fedrecall.errors import InputError
from fedrecall.measure import forgetting
from fedrecall.measure.evaluator import Evaluator
from fedrecall.recipe.recipe import Recipe
from fedrecall.rng import stream
from fedrecall.runs.client_states import ClientStore
from fedrecall.vector import Tensors

Arrays = dict[str, np.ndarray]


class Probes:
    """Decides when there is a probe, and on whose data."""

    def __init__(self, recipe: Recipe, federation: Federation, evaluator: Evaluator) -> None:
        self.recipe, self.federation, self.evaluator = recipe, federation, evaluator
        if any(map(recipe.forgetting.due, range(1, recipe.rounds + 1))):
            self._check()

    def _check(self) -> None:
        if not self.evaluator.has_validation:
            raise InputError("forgetting is measured on validation data, and partition.validation is 0")
        if self.evaluator.algorithm.pooled or self.evaluator.algorithm.personal:
            raise InputError(
                "forgetting is what a client's training costs the shared model; with algorithm "
                f"{self.recipe.algorithm['name']!r} there is none: say forgetting.every=0"
            )

    def begin(self, t: int, engine: Engine, store: ClientStore, tasks: list[Task]) -> Probe | None:
        """The probe of a round whose model is published and not trained yet; None if there is none."""
        if not self.recipe.forgetting.due(t):
            return None
        probe = Probe(self.federation, self.evaluator, tasks, self._sampled(t))
        probe.before(engine, store)
        return probe

    def _sampled(self, t: int) -> list[int] | None:
        """The clients on whose data this round is probed, of those who have some; None: all training clients."""
        wanted = self.recipe.forgetting.sample
        if wanted is None:
            return None
        able = np.unique(self.federation.owners())
        random = stream(self.recipe.seed, "probe", t)
        return sorted(random.choice(able, size=min(wanted, len(able)), replace=False).tolist())


class Probe:
    """One probed round.

    The columns are all training clients, or a sample of them. A model's own client need not be in the sample; its
    data then come after those of the columns, for what the model learned.
    """

    def __init__(
        self, federation: Federation, evaluator: Evaluator, tasks: list[Task], sample: Sequence[int] | None
    ) -> None:
        self.federation, self.evaluator, self.sampled = federation, evaluator, sample is not None
        self.columns = list(range(federation.population)) if sample is None else list(sample)
        self.models = [task.client for task in tasks]
        self.round = tasks[0].round
        self.tasks = [task._replace(probe=True, clients=self._with_own([task.client])) for task in tasks]
        self.rows: list[Arrays] = []

    def _with_own(self, models: Sequence[int]) -> tuple[int, ...]:
        """Whose data a model is evaluated on, in the words of a task."""
        return (*self.columns, *(i for i in models if i not in self.columns)) if self.sampled else ()

    def before(self, engine: Engine, store: ClientStore) -> None:
        clients = self._with_own(self.models)
        judged = self.evaluator.judged(self.round, engine, store, "validation", clients)
        self._before = self._accuracies(judged["correct"], clients)

    def add(self, result: Result) -> None:
        """The model of a client, as it was after its local steps."""
        clients = result.task.clients
        row = self._accuracies(result.metrics["correct"], clients)
        if "correct_global_statistics" in result.metrics:
            other = self._accuracies(result.metrics["correct_global_statistics"], clients)
            row["global_statistics"] = other["columns"]
        self.rows.append(row)

    def finish(
        self, engine: Engine, store: ClientStore, server: Tensors, buffers: Tensors
    ) -> tuple[Arrays, dict[str, float]]:
        """The arrays of the round's file, and what its line says. `server` is the state after the round."""
        # The vector that the next clients would be sent, as `before` was: not a mean that is only evaluated.
        engine.publish(self.round, {"w": self.evaluator.algorithm.broadcast(server)["w"]}, buffers)
        clients = tuple(self.columns) if self.sampled else ()
        judged = self.evaluator.judged(self.round, engine, store, "validation", clients)
        arrays = self._arrays() | {"after_aggregation": self._accuracies(judged["correct"], clients)["columns"]}
        return arrays, forgetting.probe_metrics(arrays, self.federation.population)

    def _accuracies(self, correct: np.ndarray, clients: Sequence[int]) -> Arrays:
        """By client (all of those judged, and the columns alone) and, on the columns' data, by class."""
        federation, among = self.federation, len(self.columns)
        sizes = [len(federation.validation_indices(client)) for client in clients or self.columns]
        accuracy = forgetting.client_accuracy(correct, np.repeat(np.arange(len(sizes)), sizes), len(sizes))
        inside = sum(sizes[:among])
        source, positions = pooled(federation, "validation", clients)
        labels = source.y[positions[:inside]]
        classes = forgetting.group_mean(correct[:inside], labels, federation.num_classes)
        return {"all": accuracy, "columns": accuracy[:among], "classes": classes}

    def _arrays(self) -> Arrays:
        before, rows, federation = self._before, self.rows, self.federation
        samples = [federation.validation_indices(client) for client in self.columns]
        labels = federation.train.y[np.concatenate(samples)]
        arrays = {
            "models": np.array(self.models, np.int64),
            "data": np.array(self.columns, np.int64),
            "before": before["columns"],
            "after": np.stack([row["columns"] for row in rows]),
            "samples": np.array([len(part) for part in samples], np.int64),
            "class_before": before["classes"],
            "class_after": np.stack([row["classes"] for row in rows]),
            "class_samples": np.bincount(labels, minlength=federation.num_classes),
            "present": np.stack([federation.labels(client).counts.numpy() > 0 for client in self.models]),
        }
        if all("global_statistics" in row for row in rows):
            arrays["after_global_statistics"] = np.stack([row["global_statistics"] for row in rows])
        if self.sampled:
            asked = self._with_own(self.models)
            arrays["own_before"] = before["all"][[asked.index(client) for client in self.models]]
            own = [row["all"][self._with_own([i]).index(i)] for i, row in zip(self.models, rows)]
            arrays["own_after"] = np.array(own)
        return arrays
