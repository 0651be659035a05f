"""The cohort of a round: who is asked, who trains, for how many steps, and how long that would take."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedrecall.client.batches import LocalPlan
from fedrecall.client.tasks import TrainTask
from fedrecall.core.rng import stream
from fedrecall.data.federation import EVERYONE
from fedrecall.errors import InputError
from fedrecall.models.build import least_samples
from fedrecall.runs.client_states import StateTable
from fedrecall.simulation.experiment import Experiment


@dataclass(frozen=True)
class Attendance:
    """Who takes part in a round: a function of the seed and the round alone."""

    asked: list[int]
    steps: dict[int, int]  # of each client that trains; 0: as in the settings
    stragglers: int  # clients that were too slow for all their steps
    seconds: float | None  # simulated, until the server has the last update that it waits for

    @property
    def answering(self) -> list[int]:
        return list(self.steps)


def attendance(experiment: Experiment, t: int) -> Attendance:
    """Return who is asked in a round, and what becomes of each of these clients."""
    asked = sample_clients(experiment, t)
    answering = answering_clients(experiment, t, asked)
    shares = straggling_clients(experiment, t, asked)
    if not shares and experiment.clock is None:
        return Attendance(asked, dict.fromkeys(answering, 0), 0, None)
    steps, slow, seconds = dict[int, int](), 0, [0.0]
    for client in answering:
        plan = plan_of(experiment, client)
        given, time = work_of(experiment, client, plan, shares.get(client))
        slow += given < plan.steps
        if given:
            steps[client] = given if given < plan.steps else 0
            seconds.append(time)
    if experiment.clock is None:
        return Attendance(asked, steps, slow, None)
    waits = len(steps) < len(asked) and experiment.clock.settings.deadline is not None
    return Attendance(asked, steps, slow, experiment.clock.deadline if waits else max(seconds))


def work_of(experiment: Experiment, client: int, plan: LocalPlan, share: float | None) -> tuple[int, float]:
    """Return the steps that a client takes, 0 if it is left out, and its simulated seconds.

    `share` is given for a straggler: it works so slowly that its few steps take as long as all of them would.
    """
    steps = plan.steps if share is None else 1 + int(share * (plan.steps - 1))
    slowness, seconds = plan.steps / max(steps, 1), 0.0
    if experiment.clock is not None:
        simulated = experiment.clock.client(client)
        steps = min(steps, simulated.steps_in_time(plan, slowness))
        if steps:
            seconds = simulated.seconds(LocalPlan(plan.samples, plan.size, plan.per_epoch, steps), slowness)
    late = share is not None or steps < plan.steps
    left_out = late and experiment.participation.late == "left_out"
    return (0, 0.0) if left_out else (steps, seconds)


def sample_clients(experiment: Experiment, t: int) -> list[int]:
    """Return the clients that a round asks."""
    population, random = experiment.federation.population, stream(experiment.recipe.seed, "sample", t)
    sizes = experiment.federation.index.train_sizes(np.arange(population))
    return checked_ids(experiment.participation.choose(t, sizes, random), range(population), "sample")


def answering_clients(experiment: Experiment, t: int, asked: list[int]) -> list[int]:
    """Return the asked clients that do not fail."""
    random = stream(experiment.recipe.seed, "answers", t)
    return checked_ids(experiment.participation.answering(t, asked, random), set(asked), "answering")


def straggling_clients(experiment: Experiment, t: int, asked: list[int]) -> Mapping[int, float]:
    """Return the asked clients that are slow in this round, with the share of their steps that they manage."""
    random = stream(experiment.recipe.seed, "stragglers", t)
    shares = experiment.participation.straggling(t, asked, random)
    checked_ids([*shares], set(asked), "straggling")
    if not all(0 <= share <= 1 for share in shares.values()):
        raise InputError(f"participation.straggling returned {[*shares.values()][:10]}; expected shares from 0 to 1")
    return shares


def tasks_of(experiment: Experiment, t: int, there: Attendance, lr: float, states: StateTable) -> list[TrainTask]:
    """Return the training tasks of a round, one for each client, in the order of the sum."""
    if experiment.algorithm.pooled:
        steps = sum(given or plan_of(experiment, client).steps for client, given in there.steps.items())
        return [TrainTask(t, 0, EVERYONE, lr, steps, states.version(EVERYONE))] if steps else []
    # Largest first, so that no worker idles at the end; the order is the same on every engine.
    ids, cohort = np.array(there.answering, np.int64), len(there.asked)
    places = np.argsort(-experiment.federation.index.train_sizes(ids), kind="stable")
    version = states.versions.get
    return [
        TrainTask(t, order, client, lr, there.steps[client], version(client, 0), cohort=cohort)
        for order, client in enumerate(ids[places].tolist())
    ]


def checked_ids(ids: Sequence[int], known: Container[int], method: str) -> list[int]:
    """Return client ids as integers; raise an `InputError` for repeated or unknown ids."""
    clients = [int(client) for client in ids]
    if len(set(clients)) < len(clients) or not all(client in known for client in clients):
        raise InputError(f"participation.{method} returned {clients[:10]}; expected different ids of known clients")
    return clients


def plan_of(experiment: Experiment, client: int) -> LocalPlan:
    """Return a client's local steps as the settings have them."""
    samples = int(experiment.federation.index.train_sizes(np.array([client]))[0])
    return LocalPlan.of(experiment.recipe.local, samples, least_samples(experiment.flat.module))
