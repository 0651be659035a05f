"""Evaluation of a round's models: the metrics, their data and their rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedrecall.client.job import Job
from fedrecall.client.predictions import EvaluateResult, Predictions
from fedrecall.client.tasks import EvaluateTask
from fedrecall.core.rng import stream
from fedrecall.data.federation import Federation
from fedrecall.engines.engine import Engine
from fedrecall.errors import InputError
from fedrecall.measure.forgetting import client_accuracy, global_forgetting, global_forgetting_from_best, group_mean
from fedrecall.measure.live_round import LiveRound, Observer
from fedrecall.measure.metrics import client_metrics, counted_metrics, pooled_metrics
from fedrecall.measure.user_metrics import UserMetric, evaluate_user_metric, user_metrics
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs import files
from fedrecall.runs.client_states import StateTable
from fedrecall.runs.jsonl import Lines

PART = 1024  # samples per evaluation task
MOST_CLIENTS = 500  # on a line of clients.jsonl
PREFIX = {"validation": "val", "held_out": "held_out", "test": "test"}
# Prefixes of the metrics that only evaluated, or only tested, rounds have.
OF_EVALUATED = ("val_", "held_out_", "global_forgetting", "update_")
OF_TESTED = ("test_",)

Line = dict[str, Any]


class Evaluator(Observer):
    """Measures metrics on the pooled validation data, on the held-out clients and on the test set."""

    def __init__(
        self, recipe: Recipe, job: Job, federation: Federation, metrics: Mapping[str, UserMetric] | None = None
    ) -> None:
        self.recipe, self.federation = recipe, federation
        self.algorithm = job.algorithm
        self.own_models = job.algorithm.personal or job.batch_norm == "local"  # or statistics
        self.user_metrics = user_metrics(recipe.evaluation.metrics or (), metrics)
        self.has_validation = len(federation.pool("validation")[1]) > 0
        # The measured version and metrics of clients' own models, by split and client.
        self._of_models: dict[tuple[str, int | None], tuple[int, Line]] = {}
        self._classes: list[np.ndarray] = []  # the last and the best accuracy of each class
        self._listed = listed_clients(recipe.seed, federation)
        personal = recipe.evaluation.personalised
        steps = personal.steps if personal else 0
        asked = {"target": recipe.evaluation.target, "metrics": self.user_metrics, "personalised.steps": steps}
        for key, wanted in asked.items():
            if wanted and not self.has_validation:
                raise InputError(f"evaluation.{key} is measured on validation data, and partition.validation is 0")

    def recall(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Restore the history of a resumed run from its lines of clients.jsonl."""
        self._classes = []
        for line in lines:
            classes = line.get("val_class_accuracy")
            if classes is not None:
                self._global_forgetting(class_accuracies(line["round"], classes, self.federation.num_classes))

    def due(self, t: int) -> list[str]:
        """Return the splits that the models of this round are evaluated on."""
        splits = []
        if self.recipe.evaluates(t):
            splits += ["validation"] if self.has_validation else []
            splits += ["held_out"] if self.federation.assignment.held_out else []
        if self._tests(t) and self.federation.test is not None:
            splits.append("test")
        return splits

    def _tests(self, t: int) -> bool:
        return t > self.recipe.rounds - self.recipe.tested_rounds

    def planned(self, lines: Mapping[str, Lines]) -> dict[str, Lines]:
        """Return the lines of a run's files without metrics that this recipe does not measure in their rounds.

        A shorter run evaluated and tested some rounds only because they were its last.
        """
        planned = dict(lines)
        if files.METRICS in lines:
            planned[files.METRICS] = [self._planned(line) for line in lines[files.METRICS]]
        if files.CLIENTS in lines:
            planned[files.CLIENTS] = [line for line in lines[files.CLIENTS] if self.recipe.evaluates(line["round"])]
        return planned

    def notes_on_untested(self, lines: Lines) -> Iterator[str]:
        """Yield a warning if completed rounds are among those to test but were not tested."""
        past = [line["round"] for line in lines if "test" in self.due(line["round"]) and "test_accuracy" not in line]
        if past:
            yield (
                f"of the last {self.recipe.tested_rounds} rounds, those up to {past[-1]} are not tested: "
                "they were done before the run was made longer"
            )

    def _planned(self, line: Line) -> Line:
        t = line["round"]
        unplanned = (() if self.recipe.evaluates(t) else OF_EVALUATED) + (() if self._tests(t) else OF_TESTED)
        return {key: value for key, value in line.items() if not key.startswith(unplanned)}

    def after(self, live: LiveRound) -> None:
        """Add the metrics of the global model (or means over the clients' own models) and those by client."""
        t, engine, states = live.number, live.engine, live.states
        splits = self.due(t)
        if splits:
            engine.publish(t, {"w": self.algorithm.evaluated(live.server)}, live.buffers)
        for split in splits:
            if self._means_over_models(split):
                live.line |= self._mean_over_models(t, engine, states, split)
                continue
            predictions = self.predictions(t, engine, states, split, logits=self._wants_logits(split))
            live.line |= self._pooled(t, split, predictions)
            if split == "validation" and not np.isnan(predictions.correct).all():  # else no client answered
                over_clients, live.by_client = self._by_client(t, predictions)
                live.line |= over_clients

    def _means_over_models(self, split: str) -> bool:
        """Whether each client's own model is evaluated on the whole split (validation: only without exchange)."""
        return self.algorithm.personal and (split != "validation" or not self.algorithm.exchanges)

    def _wants_logits(self, split: str) -> bool:
        return split == "validation" and bool(self.user_metrics)

    def _pooled(self, t: int, split: str, predictions: Predictions) -> Line:
        """Return the metrics of one model on all samples of a split."""
        prefix = PREFIX[split]
        if split == "held_out":
            return {"held_out_accuracy": float(predictions.correct.mean())}
        if split == "validation" and not self.federation.knows_labels:
            return {f"{prefix}_{name}": value for name, value in counted_metrics(predictions).items()}
        labels = self._labels(split)
        found = pooled_metrics(predictions, labels, self.federation.num_classes)
        if (logits := predictions.logits) is not None:
            for name, function in self.user_metrics.items():
                found[name] = evaluate_user_metric(name, function, logits, labels.copy(), t)
        return {f"{prefix}_{name}": value for name, value in found.items()}

    def _labels(self, split: str) -> np.ndarray:
        source, positions = self.federation.pool(split)
        labels: np.ndarray = source.y[positions]
        return labels

    def _by_client(self, t: int, predictions: Predictions) -> tuple[Line, Line]:
        """Return the metrics over clients and classes for the round's line, and the line of clients.jsonl."""
        federation = self.federation
        owners, population = federation.owners(), federation.population
        accuracy = client_accuracy(predictions.correct, owners, population)
        line = {f"val_{name}": value for name, value in client_metrics(accuracy).items()}
        by_class: Line = {}
        if federation.knows_labels:
            classes = group_mean(predictions.correct, self._labels("validation"), federation.num_classes)
            line |= self._global_forgetting(classes)
            by_class["val_class_accuracy"] = classes.tolist()
        listed = self._listed
        nll, samples = group_mean(predictions.nll, owners, population), np.bincount(owners, minlength=population)
        return line, {
            "round": t,
            "client": listed.tolist(),
            **({"name": [federation.client_names[k] for k in listed]} if federation.client_names else {}),
            "val_accuracy": accuracy[listed].round(6).tolist(),
            "val_nll": nll[listed].round(6).tolist(),
            "samples": samples[listed].tolist(),
            **by_class,
        }

    def _global_forgetting(self, classes: np.ndarray) -> Line:
        """Return the forgetting since earlier evaluated rounds; empty in the first."""
        if not self._classes:
            self._classes = [classes, classes]
            return {}
        previous, best = self._classes
        self._classes = [classes, np.maximum(best, classes)]
        return {
            "global_forgetting": global_forgetting(previous, classes),
            "global_forgetting_from_best": global_forgetting_from_best(best[None], classes),
        }

    def predictions(
        self, t: int, engine: Engine, states: StateTable, split: str, clients: Sequence[int] = (), logits: bool = False
    ) -> Predictions:
        """Return predictions for the pooled samples of a split; of "validation", those of `clients` if given.

        The published model predicts or, if clients have own models or statistics, each client's on its samples.
        """
        whole = EvaluateTask(t, 0, split, clients=tuple(clients), logits=logits)
        if not self.own_models:
            return self._parts(engine, [whole])
        own = [
            whole._replace(client=client, state_version=states.version(client), clients=(client,))
            for client in clients or range(self.federation.population)
        ]
        return self._parts(engine, own)

    def _parts(self, engine: Engine, wholes: list[EvaluateTask]) -> Predictions:
        """Return predictions for the tasks in order, split into parts that the engine can distribute."""
        parts: list[EvaluateTask] = []
        for task in wholes:
            size = len(self.federation.pool(task.split, task.clients)[1])
            for start in range(0, size, PART):
                parts.append(task._replace(order=len(parts), start=start, stop=min(start + PART, size)))
        results = engine.run(parts)
        return Predictions.concatenate([r.predictions for r in results if isinstance(r, EvaluateResult)])

    def _mean_over_models(self, t: int, engine: Engine, states: StateTable, split: str) -> Line:
        """Return mean metrics of the clients' own models; without exchange, only changed ones are evaluated."""
        lines = []
        for client in range(self.federation.population):
            version = states.version(client)
            key = (split, client if version else None)
            known = None if self.algorithm.exchanges else self._of_models.get(key)
            if known is None or known[0] != version:
                logits = self._wants_logits(split)
                whole = EvaluateTask(t, 0, split, key[1], state_version=version, logits=logits)
                self._of_models[key] = version, self._pooled(t, split, self._parts(engine, [whole]))
            lines.append(self._of_models[key][1])
        return {name: float(np.mean([line[name] for line in lines])) for name in lines[0]}


def class_accuracies(round: int, values: Any, classes: int) -> np.ndarray:
    """Return the class accuracies of a line of clients.jsonl, where null is a class without samples."""
    if (
        not isinstance(values, list)
        or [type(value) in (int, float, type(None)) for value in values] != [True] * classes
    ):
        raise InputError(f"clients.jsonl is damaged: round {round} has no accuracies of {classes} classes")
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def listed_clients(seed: int, federation: Federation) -> np.ndarray:
    """Return the clients on the lines of clients.jsonl, the same in every round: all training clients, or a sample
    drawn by the seed that keeps the file small."""
    everyone = federation.population
    if everyone <= MOST_CLIENTS:
        return np.arange(everyone)
    return np.sort(stream(seed, "probe").choice(everyone, MOST_CLIENTS, replace=False))
