"""An experiment: the objects that its rounds need, built from a recipe and a federation without writing files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedrecall.algorithms.base import Algorithm, Population
from fedrecall.backend.device import Device, check_device
from fedrecall.backend.torch_state import fixed_torch_state
from fedrecall.client.forward_calls import ForwardPass
from fedrecall.client.job import Job
from fedrecall.client.lanes.decision import decide_steps
from fedrecall.core.vector import FlatModel, tensors_digest
from fedrecall.data.federation import Federation
from fedrecall.engines.auto import choose_engine, clients_fill_lanes, devices_for
from fedrecall.engines.engine import Engine
from fedrecall.errors import InputError
from fedrecall.measure.evaluator import Evaluator
from fedrecall.measure.live_round import Observer
from fedrecall.measure.probe import Probes
from fedrecall.measure.training_cost import TrainingCost
from fedrecall.measure.user_metrics import UserMetric
from fedrecall.measure.watcher import Watcher
from fedrecall.models.build import check_outputs, dry_batch, refuse_unknown_ids
from fedrecall.models.weights import load_weights
from fedrecall.objectives.base import Objective
from fedrecall.optimisers import Optimiser
from fedrecall.participation import Participation
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs import files
from fedrecall.runs.reader import RunRecord
from fedrecall.simulation.clock import SimulatedClock
from fedrecall.simulation.compatibility import check_cohort, check_combination, check_personalised
from fedrecall.simulation.early_stopping import refuse_unknown_metric
from fedrecall.simulation.privacy import check_privacy
from fedrecall.simulation.server_data import server_data_of
from fedrecall.trackers import TRACKER, Tracker
from fedrecall.updates import Pipeline, Stage


class Experiment:
    """A recipe with the objects that it names, ready to run."""

    @fixed_torch_state()
    def __init__(self, recipe: Recipe, job: Job, federation: Federation, parts: Parts) -> None:
        self.recipe, self.federation, self.trackers = recipe, federation, trackers_of(recipe)
        self.flat = job.build_model(federation)
        job = job.for_model(self.flat)
        self.algorithm, self.payload = job.algorithm, self.flat.payload
        check_outputs(self.flat, federation)
        self.server_data = server_data_of(recipe, federation, self.flat.w.dtype, parts.server_data)
        self.population = Population(federation.population, len(federation.pool("train")[1]))
        self.participation = parts.participation or recipe.create_participation()
        self.count = self.participation.expected(federation.population)
        check_combination(recipe, job, federation, self.flat)
        check_privacy(recipe, job, federation, self.flat, self.participation)
        check_cohort(recipe, job, self.count)
        cost = TrainingCost(recipe.local, self.flat, federation, models=1 + self.algorithm.trains_own)
        samples = max(1, self.population.samples // self.population.clients)
        step = cost.flops_per_sample * min(recipe.local.batch_size, samples)
        devices = devices_for(recipe.execution, step, self.flat.w.dtype)
        work = cost.of_client(samples)
        self.steps = decide_steps(job, federation, self.flat, on_cpu=devices[0] == "cpu")
        self.job = job = self.steps.job
        self.clock = clock_of(recipe, job, self.flat, cost.flops_per_sample)
        self.engine = parts.engine or choose_engine(
            recipe.execution, job, self.flat.module, self.count, work, recipe.rounds, devices,
            fills_lanes=clients_fill_lanes(job),
        )  # fmt: skip
        recorded = self.engine.records_steps or job.lowering is not None
        self.forward = ForwardPass(self.flat, dry_batch(federation, self.flat.w.dtype)) if recorded else None
        check_device(self.device, recipe.local.precision, self.flat.module)
        if not self.device.is_cpu:
            refuse_unknown_ids(self.flat.module, federation)
        check_personalised(recipe, self.engine)
        self.evaluator = Evaluator(recipe, job, federation, parts.metrics)
        if recipe.stop.patience or recipe.keep == "best":
            own, has_validation = self.evaluator.user_metrics, self.evaluator.has_validation
            refuse_unknown_metric(recipe.stop, own, has_validation=has_validation)
        probes = Probes(recipe, federation, self.evaluator)
        self.measures: list[Observer] = [cost, self.evaluator, probes]  # in the order of the metrics on a line
        self.weights: str | None = None  # the digest of given initial weights
        self._init_loaded = False

    def load_init(self) -> None:
        """Load the initial weights that the recipe names, if any."""
        if self.recipe.init and not self._init_loaded:
            with fixed_torch_state():
                load_weights(self.flat.module, Path(self.recipe.init))
            self._init_loaded = True

    @property
    def digest(self) -> str:
        """The hash of all that decides the run's result."""
        return self.recipe.digest(self.engine.rounding, self.weights, self.device.rounding)

    @property
    def device(self) -> Device:
        """The device that clients train on; the first of several, which are alike."""
        return self.engine.devices[0]

    @property
    def meant_for(self) -> str:
        """The class shares that the evaluated model is meant for: "uniform", "pooled" or "given"."""
        prior = self.recipe.evaluation.prior
        if prior == "as_trained":
            return self.job.objective.meant_for
        return prior if isinstance(prior, str) else "given"


@dataclass(frozen=True)
class Parts:
    """Python objects that replace what a recipe names."""

    model: Callable[[], nn.Module] | None = None
    algorithm: Algorithm | None = None
    objective: Objective | None = None
    optimiser: Optimiser | None = None
    participation: Participation | None = None
    stages: Sequence[Stage] | None = None
    server_data: Any = None  # an array of samples
    metrics: Mapping[str, UserMetric] | None = None
    engine: Engine | None = None


def build(
    recipe: Recipe,
    federation: Federation,
    parts: Parts | None = None,
    *,
    given_weights: bool = False,
    run: Path | None = None,
) -> Experiment:
    """Build the experiment that a recipe describes.

    With `given_weights` the model has its own initial weights. `run` is the folder of a run to resume, which
    records the digest of its initial weights; their file may be gone.
    """
    parts = parts or Parts()
    made = Experiment(recipe, job_of(recipe, federation, parts), federation, parts)
    if run is not None and (run / files.ORIGIN).exists():
        made.weights = RunRecord(run).origin.get("model", {}).get("weights")
    elif given_weights or recipe.init:
        made.load_init()
        made.weights = tensors_digest(made.flat.state_dict())[:16]
    return made


def job_of(recipe: Recipe, federation: Federation, parts: Parts | None = None) -> Job:
    """Return the job of a recipe: all that its workers need."""
    parts = parts or Parts()
    shapes = {"sample_shape": federation.sample_shape, "num_classes": federation.num_classes}
    stages = recipe.create_stages() if parts.stages is None else tuple(parts.stages)
    return Job(
        parts.model or partial(recipe.create, "model", **shapes),
        parts.algorithm or recipe.create("algorithm"),
        parts.objective or recipe.create("objective"),
        recipe.local,
        recipe.seed,
        recipe.batch_norm,
        recipe.evaluation.prior,
        pipeline=Pipeline(stages, recipe.seed),
        optimiser=parts.optimiser or recipe.local.create_optimiser(),
    )


def clock_of(recipe: Recipe, job: Job, flat: FlatModel, flops_per_sample: int) -> SimulatedClock | None:
    """Return the simulated clock, if the recipe has one."""
    if recipe.clock is None:
        return None
    if job.algorithm.pooled:
        raise InputError(f"clock is given, but with algorithm {recipe.algorithm['name']!r} all data are in one place")
    return SimulatedClock.of(recipe.clock, job, flat, flops_per_sample)


def trackers_of(recipe: Recipe) -> list[Watcher | Tracker]:
    """Return the trackers and watchers that a recipe names."""
    made = [TRACKER.create(tree) for tree in recipe.trackers]
    for tree, tracker in zip(recipe.trackers, made):
        if not isinstance(tracker, Watcher | Tracker):
            raise InputError(
                f"trackers is {tree['name']!r}, which makes no Watcher and no Tracker; expected a class derived from "
                "one of them"
            )
        if isinstance(tracker, Tracker):
            tracker.check()
    return made
