"""Estimate the time and disk space of a study's runs on this machine by timing a few short rounds."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedrecall.api.execute import load_federation
from fedrecall.backend.torch_state import fixed_torch_state
from fedrecall.client.batches import LocalPlan
from fedrecall.data.federation import Federation
from fedrecall.engines.vectorised import Vectorised
from fedrecall.models.build import least_samples
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs import checkpoint, files
from fedrecall.runs.client_states import StateFiles
from fedrecall.runs.identity import identity
from fedrecall.simulation.experiment import Experiment, build
from fedrecall.simulation.round import first_state, play_round, playing
from fedrecall.storage.scratch import ScratchFolder
from fedrecall.studies.cells import PlannedRun, RunSlot
from fedrecall.studies.folder import State

TIMED_ROUNDS = 3  # at least; the first is not counted, as it includes set-up
TIMED_SECONDS = 0.5  # short rounds are repeated for so long, as others may keep the machine busy
TIMED_STEPS = 2
MOST_TOGETHER = 64  # clients that are timed at once
SERIAL = "serial"
FORWARD = 1 / 3  # the share of a training step that its forward pass takes
LINE = 1500  # approximate bytes of a round's lines


@dataclass(frozen=True)
class Cost:
    """The estimated cost of one run."""

    seconds: float
    bytes: float


Told = Callable[[str], None]  # is told what is about to be timed


def costs(runs: Sequence[PlannedRun], told: Told | None = None) -> Mapping[PlannedRun, Cost]:
    """Return the cost of each run. Runs that take the same time are measured once."""
    kinds = {run: kind_of(run.recipe) for run in runs}
    examples = {kind: run for run, kind in reversed(kinds.items())}
    measured: dict[str, Cost] = {}
    for number, kind in enumerate(dict.fromkeys(kinds.values()), start=1):
        if told is not None:
            told(f"timing {number} of {len(examples)}: {examples[kind].slot.cell}")
        measured[kind] = cost_of(examples[kind].recipe)
    return {run: measured[kind] for run, kind in kinds.items()}


def planned_seconds_left(costs: Mapping[PlannedRun, Cost], states: Mapping[RunSlot, State], jobs: int) -> float:
    """Return the seconds until these runs are done with `jobs` at once; rounds that are done do not count."""
    left = [cost.seconds * (1 - states[run.slot].rounds / run.recipe.rounds) for run, cost in costs.items()]
    return max([sum(left) / max(jobs, 1), *left], default=0.0)


def kind_of(recipe: Recipe) -> str:
    """Return a string that is equal for recipes whose rounds take the same time."""
    tree = {key: value for key, value in identity(recipe.tree()).items() if key not in ("seed", "objective")}
    tree["local"] = {
        key: value for key, value in tree["local"].items() if key not in ("lr", "weight_decay", "beta_from")
    }
    tree["partition"] = {key: value for key, value in tree["partition"].items() if key not in ("seed", "alpha")}
    tree["passes"] = sorted(recipe.create("objective").needs)  # a teacher costs a forward pass
    return json.dumps(tree, sort_keys=True)


def cost_of(recipe: Recipe) -> Cost:
    federation = load_federation(recipe)
    experiment, each = time_steps(recipe, federation)
    local, least = recipe.local, least_samples(experiment.flat.module)
    sizes = federation.index.train_sizes(np.arange(federation.population)).tolist()
    steps = float(np.mean([LocalPlan.of(local, n, least).steps for n in sizes]))
    count = recipe.create_participation().expected(federation.population)
    trained = recipe.rounds * count * steps * each
    judged = samples_judged(recipe, federation, count) / local.batch_size * each * FORWARD
    return Cost(trained + judged, disk_space_needed(recipe, experiment, federation))


def time_steps(recipe: Recipe, federation: Federation) -> tuple[Experiment, float]:
    """Return an experiment like the recipe's, and the seconds of one client's local step.

    One client is timed, or many if the run's engine trains clients together: then a step of one is a share.
    """
    execution, clients = recipe.execution, recipe.create_participation().expected(federation.population)
    engine = execution.engine if execution.engine in ("auto", Vectorised.name) and not execution.ray_address else SERIAL
    experiment = build(short_version(recipe, clients, engine), federation)
    together = min(clients, MOST_TOGETHER) if isinstance(experiment.engine, Vectorised) else 1
    if together < clients:
        engine = SERIAL if together == 1 else Vectorised.name
        experiment = build(short_version(recipe, together, engine), federation)
    return experiment, seconds_of_round(experiment) / TIMED_STEPS / together


def short_version(recipe: Recipe, clients: int, engine: str) -> Recipe:
    """Return the recipe with so many clients in a round, a few steps for each, and no evaluation."""
    tree = {key: value for key, value in recipe.tree().items() if key != "participation"}
    local = {key: value for key, value in tree["local"].items() if key not in ("epochs", "schedule")}
    tree |= {
        "rounds": 10**6,
        "clients_per_round": clients,
        "local": {**local, "steps": TIMED_STEPS},
        "evaluation": {"every": 10**6, "test_last": 1},
        "forgetting": {"every": 0},
        "execution": {**tree["execution"], "engine": engine, "workers": 1},
    }
    return Recipe(**tree)


@fixed_torch_state()
def seconds_of_round(experiment: Experiment) -> float:
    """Return the seconds of the fastest of a few rounds."""
    seconds: list[float] = []
    with ScratchFolder("timing") as place, playing(experiment, StateFiles(place.path / files.STATES)) as states:
        state = first_state(experiment)
        while len(seconds) < TIMED_ROUNDS or sum(seconds) < TIMED_SECONDS:
            start = time.perf_counter()
            state, _ = play_round(experiment, state, states)
            states.settle()
            seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def samples_judged(recipe: Recipe, federation: Federation, count: int) -> float:
    """Return the number of samples evaluated in all rounds; a probe evaluates the round's models and two more."""
    validation, rounds = len(federation.pool("validation")[1]), range(1, recipe.rounds + 1)
    tested = recipe.tested_rounds * (0 if federation.test is None else len(federation.test))
    probed = sum(map(recipe.forgetting.due, rounds))
    return validation * (math.ceil(recipe.rounds / recipe.evaluation.every) + probed * (count + 2)) + tested


def disk_space_needed(recipe: Recipe, experiment: Experiment, federation: Federation) -> float:
    """Return the bytes of the model, the kept checkpoints, the clients' states and the lines of all rounds."""
    algorithm, w = experiment.algorithm, experiment.flat.w
    server = sum(tensor.nbytes for tensor in algorithm.init(w.clone()).values())
    client = sum(tensor.nbytes for tensor in algorithm.init_client(w.clone()).values()) if algorithm.keeps_state else 0
    return w.nbytes + checkpoint.KEPT * server + federation.population * client + LINE * recipe.rounds
