"""Personal models at the end of a run: each client's, after some local steps from the final model."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrecall.client.tasks import TrainTask
from fedrecall.client.update import Update
from fedrecall.core.rng import stream
from fedrecall.core.vector import Tensors
from fedrecall.measure.forgetting import (
    forgetting_matrix,
    mean_forgetting,
    mean_of_known,
    own_pairs,
    without_own_data,
)
from fedrecall.measure.probe import Arrays, ProbedRound
from fedrecall.recipe.settings import Personalised
from fedrecall.runs.client_states import StateTable
from fedrecall.simulation.experiment import Experiment


def wanted(experiment: Experiment) -> Personalised | None:
    """Return the settings; by default a personal algorithm has its accuracy shown beside that of fine-tuning."""
    given, algorithm = experiment.recipe.evaluation.personalised, experiment.algorithm
    able = experiment.evaluator.has_validation and not experiment.engine.leaves_out_clients
    if given is None:
        return Personalised() if algorithm.personal and algorithm.exchanges and able else None
    return given if given.steps else None


def personalise(
    experiment: Experiment, settings: Personalised, round: int, server: Tensors, model: Tensors, states: StateTable
) -> dict[str, Any]:
    """Return the summary of the personal models.

    A client trains as in a round after the last, from the final model and on its training data alone; nothing of
    it is kept. Its model is judged on its validation data, and on the others'.
    """
    recipe, federation, engine, t = experiment.recipe, experiment.federation, experiment.engine, round + 1
    lr = recipe.local.lr if settings.lr is None else settings.lr
    everyone = range(federation.population)
    tasks = [
        TrainTask(t, order, client, lr, settings.steps, states.version(client), cohort=len(everyone))
        for order, client in enumerate(everyone)
    ]
    probed = ProbedRound(federation, tasks, sampled_clients(experiment))
    engine.publish(t, {**experiment.algorithm.broadcast(server), "w": model["w"]}, model)
    asked = probed.clients_before()
    correct = experiment.evaluator.predictions(t, engine, states, "validation", asked).correct
    probed.before = probed.accuracies(correct, asked)
    for result in engine.run([probed.asked_of(task) for task in tasks]):
        assert isinstance(result, Update)
        assert result.probe is not None
        probed.add(result.task, result.probe)
        states.discard(result.client, result.state)
    # With models of their own, clients were not judged with one model before: there is nothing to have forgotten.
    return personal_summary(probed.arrays(), settings.steps, shared=not experiment.evaluator.own_models)


def sampled_clients(experiment: Experiment) -> list[int] | None:
    """Return the clients on whose data personal models are judged, besides their own; None for all."""
    wanted = experiment.recipe.forgetting.sample
    if wanted is None:
        return None
    able = np.unique(experiment.federation.owners())
    random = stream(experiment.recipe.seed, "probe")
    return sorted(random.choice(able, size=min(wanted, len(able)), replace=False).tolist())


def personal_summary(arrays: Arrays, steps: int, *, shared: bool) -> dict[str, Any]:
    """Return the numbers of the summary, from a probe of all clients."""
    models, data, after = arrays["models"], arrays["data"], arrays["after"]
    own_before, own_after = own_accuracies(arrays)
    summary = {
        "personal_steps": steps,
        "personal_accuracy": mean_of_known(own_after),
        "personal_accuracy_sd": float(np.nanstd(own_after)) if not np.isnan(own_after).all() else float("nan"),
        "personal_accuracy_before": mean_of_known(own_before),
        "personal_accuracy_others": mean_of_known(without_own_data(after, models, data)),
    }
    if shared:
        matrix = forgetting_matrix(arrays["before"], after)
        summary["personal_forgetting"] = mean_forgetting(matrix, models, data)
    return summary


def own_accuracies(arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return [m]: each client's accuracy on its own data before and after its steps."""
    if "own_before" in arrays:
        return arrays["own_before"], arrays["own_after"]
    own = own_pairs(arrays["after"], arrays["models"], arrays["data"])
    rows, columns = np.nonzero(own)
    return arrays["before"][columns], arrays["after"][rows, columns]
