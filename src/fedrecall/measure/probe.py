"""Probes: evaluate every model of a chosen round on every client's validation data.

A probe does not change the run. It is one forward pass over the pooled validation data for each model: the global
one before the round, each client's within its training task (it exists nowhere else), and the new global one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedrecall.client.partial_sums import Contribution
from fedrecall.client.tasks import TrainTask
from fedrecall.client.update import ProbeAnswers
from fedrecall.core.rng import stream
from fedrecall.data.federation import Federation
from fedrecall.errors import InputError
from fedrecall.measure import forgetting
from fedrecall.measure.evaluator import Evaluator
from fedrecall.measure.live_round import LiveRound, Observer
from fedrecall.recipe.recipe import Recipe

Arrays = dict[str, np.ndarray]


class Probes(Observer):
    """Runs the probes of a run: decides their rounds and clients, and measures forgetting."""

    def __init__(self, recipe: Recipe, federation: Federation, evaluator: Evaluator) -> None:
        self.recipe, self.federation, self.evaluator = recipe, federation, evaluator
        self._probe: ProbedRound | None = None
        if any(map(recipe.forgetting.due, range(1, recipe.rounds + 1))):
            self._check()

    def _check(self) -> None:
        if not self.evaluator.has_validation:
            raise InputError("forgetting is measured on validation data, and partition.validation is 0")
        if self.evaluator.algorithm.personal or not self.evaluator.algorithm.exchanges:
            raise InputError(
                "forgetting is what a client's training costs the shared model; with algorithm "
                f"{self.recipe.algorithm['name']!r} there is none: say forgetting.every=0"
            )

    def before(self, live: LiveRound) -> None:
        self._probe = None
        if self.recipe.forgetting.due(live.number):
            self._probe = ProbedRound(self.federation, live.tasks, self._sampled(live.number))
            live.tasks = [self._probe.asked_of(task) for task in live.tasks]
            clients = self._probe.clients_before()
            self._probe.before = self._probe.accuracies(self._correct(live, clients), clients)

    def _sampled(self, t: int) -> list[int] | None:
        """Return the sample of clients on whose data this round is probed; None for all training clients."""
        wanted = self.recipe.forgetting.sample
        if wanted is None:
            return None
        able = np.unique(self.federation.owners())
        random = stream(self.recipe.seed, "probe", t)
        return sorted(random.choice(able, size=min(wanted, len(able)), replace=False).tolist())

    def _correct(self, live: LiveRound, clients: Sequence[int]) -> np.ndarray:
        """Return which samples the published model classifies correctly."""
        return self.evaluator.predictions(live.number, live.engine, live.states, "validation", clients).correct

    def result(self, live: LiveRound, contribution: Contribution) -> None:
        if self._probe:
            for task, answers in contribution.probed():
                self._probe.add(task, answers)

    def after(self, live: LiveRound) -> None:
        if self._probe is None or not self._probe.rows:  # no client's model was probed
            return
        # The vector that clients would be sent next, not a mean that is only evaluated.
        vector = self.evaluator.algorithm.broadcast(live.server)["w"]
        live.engine.publish(live.number, {"w": vector}, live.buffers)
        clients = self._probe.clients_after()
        after = self._probe.accuracies(self._correct(live, clients), clients)["columns"]
        live.matrices = self._probe.arrays() | {"after_aggregation": after}
        measurable = len(np.unique(self.federation.owners()))
        live.line |= forgetting.probe_metrics(live.matrices, measurable)


class ProbedRound:
    """The accuracies of one probed round.

    The columns are all training clients or a sample of them. If a model's own client is not in the sample, its
    data follow those of the columns, to measure what the model learned.
    """

    before: Arrays

    def __init__(self, federation: Federation, tasks: list[TrainTask], sample: Sequence[int] | None) -> None:
        self.federation, self.sampled = federation, sample is not None
        self.columns = list(range(federation.population)) if sample is None else list(sample)
        self.everyone = [task.client for task in tasks]
        self.models: list[int] = []  # the clients of the rows
        self.rows: list[Arrays] = []

    def asked_of(self, task: TrainTask) -> TrainTask:
        return task._replace(probe=True, clients=self._with_own([task.client]))

    def clients_before(self) -> tuple[int, ...]:
        return self._with_own(self.everyone)

    def clients_after(self) -> tuple[int, ...]:
        return tuple(self.columns) if self.sampled else ()

    def _with_own(self, models: Sequence[int]) -> tuple[int, ...]:
        """Return the clients on whose data a model is evaluated, for its task; empty stands for all."""
        return (*self.columns, *(i for i in models if i not in self.columns)) if self.sampled else ()

    def add(self, task: TrainTask, answers: ProbeAnswers) -> None:
        """Add the accuracies of a client's model after its local steps."""
        row = self.accuracies(answers.correct, task.clients)
        if answers.with_global_statistics is not None:
            row["global_statistics"] = self.accuracies(answers.with_global_statistics, task.clients)["columns"]
        self.models.append(task.client)
        self.rows.append(row)

    def accuracies(self, correct: np.ndarray, clients: Sequence[int]) -> Arrays:
        """Return accuracies by client (all evaluated ones; the columns alone) and, on the columns, by class."""
        federation, among = self.federation, len(self.columns)
        sizes = [len(federation.validation_indices(client)) for client in clients or self.columns]
        accuracy = forgetting.client_accuracy(correct, np.repeat(np.arange(len(sizes)), sizes), len(sizes))
        found = {"all": accuracy, "columns": accuracy[:among]}
        if not federation.knows_labels:
            return found
        inside = sum(sizes[:among])
        source, positions = federation.pool("validation", clients)
        labels = source.y[positions[:inside]]
        classes = forgetting.group_mean(correct[:inside], labels, federation.num_classes)
        return found | {"classes": classes}

    def arrays(self) -> Arrays:
        """Return the arrays of the round's file, except those of the new global model."""
        before, rows, federation = self.before, self.rows, self.federation
        samples = [federation.validation_indices(client) for client in self.columns]
        arrays = {
            "models": np.array(self.models, np.int64),
            "data": np.array(self.columns, np.int64),
            "before": before["columns"],
            "after": np.stack([row["columns"] for row in rows]),
            "samples": np.array([len(part) for part in samples], np.int64),
        }
        if federation.knows_labels:
            labels = federation.train.y[np.concatenate(samples)]
            present = [federation.labels(client).counts.numpy() > 0 for client in self.models]
            arrays |= {
                "class_before": before["classes"],
                "class_after": np.stack([row["classes"] for row in rows]),
                "class_samples": np.bincount(labels, minlength=federation.num_classes),
                "present": np.stack(present),
            }
        if all("global_statistics" in row for row in rows):
            arrays["after_global_statistics"] = np.stack([row["global_statistics"] for row in rows])
        if self.sampled:
            asked = self._with_own(self.everyone)
            arrays["own_before"] = before["all"][[asked.index(client) for client in self.models]]
            own = [row["all"][self._with_own([i]).index(i)] for i, row in zip(self.models, rows)]
            arrays["own_after"] = np.array(own)
        return arrays
