"""The cohort of a round and its training tasks."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np

from fedrecall.client.batches import LocalPlan
from fedrecall.client.tasks import TrainTask
from fedrecall.core.rng import stream
from fedrecall.data.federation import EVERYONE
from fedrecall.errors import InputError
from fedrecall.models.build import least_samples
from fedrecall.runs.client_states import StateTable
from fedrecall.simulation.experiment import Experiment


def sample_clients(experiment: Experiment, t: int) -> list[int]:
    """Return the cohort of a round, a function of the seed and the round alone."""
    population, random = experiment.federation.population, stream(experiment.recipe.seed, "sample", t)
    return checked_ids(experiment.participation.sample(t, population, random), range(population), "sample")


def answering_clients(experiment: Experiment, t: int, asked: list[int]) -> list[int]:
    """Return the asked clients that answer, also a function of the seed and the round."""
    random = stream(experiment.recipe.seed, "answers", t)
    return checked_ids(experiment.participation.answering(t, asked, random), set(asked), "answering")


def tasks_of(
    experiment: Experiment, t: int, answering: list[int], lr: float, states: StateTable, cohort: int
) -> list[TrainTask]:
    """Return the training tasks of a round, one for each client, in the order of the sum."""
    if experiment.algorithm.pooled:
        return [TrainTask(t, 0, EVERYONE, lr, steps=sum(steps_of(experiment, k) for k in answering))]
    # Largest first, so that no worker idles at the end; the order is the same on every engine.
    ids = np.array(answering, np.int64)
    places = np.argsort(-experiment.federation.index.train_sizes(ids), kind="stable")
    version = states.versions.get
    return [
        TrainTask(t, order, client, lr, 0, version(client, 0), cohort=cohort)
        for order, client in enumerate(ids[places].tolist())
    ]


def checked_ids(ids: Sequence[int], known: Container[int], method: str) -> list[int]:
    """Return client ids as integers; raise an `InputError` for repeated or unknown ids."""
    clients = [int(client) for client in ids]
    if len(set(clients)) < len(clients) or not all(client in known for client in clients):
        raise InputError(f"participation.{method} returned {clients[:10]}; expected different ids of known clients")
    return clients


def steps_of(experiment: Experiment, client: int) -> int:
    samples = len(experiment.federation.train_indices(client))
    return LocalPlan.of(experiment.recipe.local, samples, least_samples(experiment.flat.module)).steps
