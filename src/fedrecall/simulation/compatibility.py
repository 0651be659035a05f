"""Combinations of a recipe's parts that raise an error or a warning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedrecall.client.job import Job
from fedrecall.core.class_sharing import ClassSharing
from fedrecall.core.priors import check_length
from fedrecall.core.vector import FlatModel
from fedrecall.data.federation import Federation
from fedrecall.display import count_of
from fedrecall.engines.engine import Engine
from fedrecall.errors import InputError, short_repr
from fedrecall.models.build import has_statistics, least_samples, trains_otherwise
from fedrecall.models.representation import Representation
from fedrecall.optimisers import SGD
from fedrecall.recipe.recipe import Recipe
from fedrecall.simulation.privacy import notes_on_privacy

if TYPE_CHECKING:
    from fedrecall.simulation.experiment import Experiment


def check_combination(recipe: Recipe, job: Job, federation: Federation, flat: FlatModel) -> None:
    algorithm, name, objective = job.algorithm, recipe.algorithm["name"], recipe.objective["name"]
    job.objective.check(federation.num_classes)
    check_length("evaluation.prior", recipe.evaluation.prior, federation.num_classes)
    if algorithm.personal and recipe.evaluation.prior != "as_trained":
        raise InputError(
            f"evaluation.prior is {short_repr(recipe.evaluation.prior)}, but with algorithm {name!r} each model "
            "is trained for its client's own class shares; 'as_trained' was expected"
        )
    if "server_data" in algorithm.needs and recipe.server_data is None:
        raise InputError(
            f"algorithm {name!r} trains on unlabelled data at the server; "
            "expected a data source as the key 'server_data', got none"
        )
    if algorithm.divides_by_rate and not recipe.local.lr:
        raise InputError(f"local.lr is 0, but algorithm {name!r} divides by the rate; above 0 was expected")
    check_optimiser(recipe, job, flat)
    if job.pipeline:
        check_stages(name, job)
    if algorithm.personal and not algorithm.exchanges and "teacher" in job.objective.needs:
        raise InputError(
            f"objective {objective!r} learns from the global model, and with algorithm {name!r} there is none"
        )
    if algorithm.personal and recipe.keep == "best":
        raise InputError(f"keep is 'best', but with algorithm {name!r} there is no one model; 'last' was expected")
    if least_samples(flat.module) > 1:
        refuse_single_samples(recipe, federation, pooled=algorithm.pooled)
    if "features" in algorithm.needs | job.objective.needs:
        Representation(flat.module, algorithm.representation)
    if algorithm.trains_own and recipe.batch_norm == "local":
        raise InputError(
            f"batch_norm is 'local', but with algorithm {name!r} each client has two models; 'average' was expected"
        )
    if recipe.batch_norm == "local" and (algorithm.exchanges or algorithm.pooled):  # else they are local anyway
        refuse_local_statistics(recipe, job, federation)


def check_optimiser(recipe: Recipe, job: Job, flat: FlatModel) -> None:
    """Raise an `InputError` if the optimiser does not fit the algorithm, or if its moments cannot be kept."""
    algorithm, name, optimiser = job.algorithm, recipe.algorithm["name"], recipe.local.optimiser["name"]
    if algorithm.assumes_sgd and type(job.optimiser) is not SGD:
        raise InputError(
            f"local.optimiser is {optimiser!r}, but algorithm {name!r} needs 'sgd': {algorithm.assumes_sgd}"
        )
    state = job.optimiser.state
    if state == "reset":
        return
    reason = None
    if algorithm.assumes_sgd:
        reason = f"algorithm {name!r} needs momentum that starts anew every round: {algorithm.assumes_sgd}"
    elif not job.optimiser.init(flat.w):
        without = " without local.momentum" if type(job.optimiser) is SGD else ""
        reason = f"{optimiser!r}{without} has no moments"
    elif state == "average" and not algorithm.exchanges:
        reason = f"with algorithm {name!r} clients send nothing; 'reset' or 'keep' was expected"
    elif state == "average" and job.pipeline:
        reason = "the stages of updates could make second moments negative; 'reset' or 'keep' was expected"
    elif state == "average" and "clients" in algorithm.needs:
        reason = f"algorithm {name!r} aggregates single updates; 'reset' or 'keep' was expected"
    if reason:
        raise InputError(f"local.optimiser.state is {state!r}, but {reason}")


def check_personalised(recipe: Recipe, engine: Engine) -> None:
    """Raise an `InputError` if personal models are asked for on a federation."""
    personal = recipe.evaluation.personalised
    if personal is not None and personal.steps and engine.leaves_out_clients:
        raise InputError(
            f"evaluation.personalised.steps is {personal.steps}, but the nodes of a federation train only the steps "
            "of its rounds; 0 was expected"
        )


def check_stages(name: str, job: Job) -> None:
    """Raise an `InputError` if the algorithm cannot be combined with the stages of updates."""
    algorithm = job.algorithm
    if algorithm.facts:
        raise InputError(
            f"updates changes what clients send, but algorithm {name!r} also sends numbers about it "
            f"({', '.join(sorted(algorithm.facts))})"
        )
    if not algorithm.exchanges:
        raise InputError(f"updates is given, but with algorithm {name!r} clients send nothing")
    if job.pipeline.works_on_sums and "clients" in algorithm.needs:
        raise InputError(f"a stage of updates works on sums, but algorithm {name!r} aggregates single updates")


def check_cohort(recipe: Recipe, job: Job, count: int) -> None:
    """Raise an `InputError` if a round has fewer clients than the algorithm can aggregate."""
    least = job.algorithm.least_clients
    if count < least:
        raise InputError(
            f"a round has {count} client{'s' if count > 1 else ''}, but algorithm {recipe.algorithm['name']!r} with "
            f"these options needs {least}: set clients_per_round or participation"
        )


def refuse_local_statistics(recipe: Recipe, job: Job, federation: Federation) -> None:
    """Raise an `InputError` if something needs a single model, which local batch-norm statistics exclude."""
    if job.algorithm.pooled:
        raise InputError(
            f"batch_norm is 'local', but algorithm {recipe.algorithm['name']!r} has one client with all data: "
            "'average' was expected"
        )
    if federation.test is not None and recipe.tested_rounds:
        raise InputError(
            "batch_norm is 'local': every client has statistics of its own, so there is no one model to test on "
            "the pooled test set; say evaluation.test_last=0, or algorithm=fedbn, which tests every client's model"
        )
    if federation.assignment.held_out:
        raise InputError("batch_norm is 'local', but held-out clients have no statistics: partition.held_out=0")


def refuse_single_samples(recipe: Recipe, federation: Federation, *, pooled: bool) -> None:
    """Raise an `InputError` if a client's batches have one sample each, of which batch norm has no statistics."""
    if recipe.local.batch_size < 2:
        raise InputError("local.batch_size is 1, but batch norm needs two samples in a batch")
    sizes = federation.index.train_sizes(np.arange(federation.population))
    if not pooled and sizes.min() < 2:
        raise InputError(f"client {sizes.argmin()} has one training sample, but batch norm needs two in a batch")


def warnings_of(experiment: Experiment, card: Mapping[str, Any]) -> Iterator[str]:
    """Yield warnings about the experiment, given the card of its partition."""
    recipe, job, federation, engine = experiment.recipe, experiment.job, experiment.federation, experiment.engine
    module, algorithm = experiment.flat.module, experiment.algorithm
    one_class_clients = card.get("one_class_clients", {}).get("count", 0)
    if job.knows_validation and federation.knows_labels:  # the card counts training labels alone
        known = (federation.labels(k, with_validation=True) for k in range(federation.population))
        one_class_clients = sum(int((labels.counts > 0).sum()) == 1 for labels in known)
    note = job.objective.note(one_class_clients, federation.population)
    # A model that differs from its teacher, which is in eval mode, has a gradient from the first step.
    taught = "teacher" in job.objective.needs and trains_otherwise(module)
    if note and not algorithm.pooled and not taught:
        yield note
    sharing = ClassSharing.from_card(card)
    if sharing is not None and algorithm.exchanges and not algorithm.pooled:
        yield from job.objective.note_on_sharing(sharing, federation.population)
    shares_known = federation.knows_labels and not algorithm.personal
    if recipe.evaluation.prior == "as_trained" and shares_known:
        yield from job.objective.note_on_prior(federation.pooled_shares)
    if experiment.count == 1 and federation.population > 1 and algorithm.exchanges:
        yield (
            f"each round has one of {federation.population} clients, so nothing is averaged: set "
            "clients_per_round or participation"
        )
    wanted, last = recipe.evaluation.test_last, recipe.tested_rounds
    if wanted is not None and wanted > recipe.rounds:
        yield (
            f"evaluation.test_last is {wanted}, but the run has {count_of(recipe.rounds, 'round')}: the final accuracy "
            f"is {'that of the last one' if last == 1 else f'over the last {last}'}"
        )
    late = [t for t in recipe.forgetting.rounds or () if t > recipe.rounds]
    if late:
        yield f"forgetting.rounds has {late}, but the run has {count_of(recipe.rounds, 'round')}"
    heeds_time = engine.replaces_workers or engine.leaves_out_clients
    if recipe.execution.client_timeout is not None and not heeds_time:
        yield f"execution.client_timeout has no effect: the engine is {engine.name!r}, without workers"
    for key in ("ray_address", "resources"):
        if getattr(recipe.execution, key) is not None and not engine.elsewhere:
            yield f"execution.{key} has no effect: the engine is {engine.name!r}, on this machine"
    yield from notes_on_privacy(experiment)
    if experiment.steps.note:
        yield experiment.steps.note
    yield from device_warnings(experiment)
    if algorithm.keeps_statistics and least_samples(module) == 1:
        yield f"the model has no batch norm, so algorithm {recipe.algorithm['name']!r} is FedAvg"
    if recipe.batch_norm == "local" and has_statistics(module) and algorithm.exchanges:
        yield "batch_norm is local: model.safetensors has the initial statistics, each client keeps its own"


def device_warnings(experiment: Experiment) -> Iterator[str]:
    execution, local, engine = experiment.recipe.execution, experiment.recipe.local, experiment.engine
    if experiment.device.is_cpu and local.precision == "bfloat16" and not torch.cpu._is_avx512_bf16_supported():
        yield "local.precision is bfloat16, which this CPU has no instructions for: it is many times slower"
    if experiment.device.is_cpu and local.precision == "float16":
        yield "local.precision is float16, which is for GPUs: on a CPU it is slower than float32"
    if execution.workers_per_device > 1 and max(shared.workers for shared in engine.devices) == 1:
        yield (
            f"execution.workers_per_device has no effect: the engine is {engine.name!r}, with "
            f"{engine.workers} workers on {experiment.device.name}"
        )
