"""Combinations of a recipe's parts that have no defined meaning are refused before anything is trained."""

from __future__ import annotations

import numpy as np

from fedrecall.client.job import Job
from fedrecall.data.federation import Federation
from fedrecall.errors import InputError, short_repr
from fedrecall.models.build import least_samples
from fedrecall.models.representation import Representation
from fedrecall.priors import check_length
from fedrecall.recipe.recipe import Recipe
from fedrecall.vector import FlatModel


def refuse_combination(recipe: Recipe, job: Job, federation: Federation, flat: FlatModel) -> None:
    """An `InputError` with the reason, if these parts do not go together."""
    algorithm, name, objective = job.algorithm, recipe.algorithm["name"], recipe.objective["name"]
    job.objective.check(federation.num_classes)
    check_length("evaluation.prior", recipe.evaluation.prior, federation.num_classes)
    if algorithm.personal and recipe.evaluation.prior != "as_trained":
        raise InputError(
            f"evaluation.prior is {short_repr(recipe.evaluation.prior)}, but with algorithm {name!r} each model "
            "is trained for its client's own class shares; 'as_trained' was expected"
        )
    if algorithm.divides_by_rate and not recipe.local.lr:
        raise InputError(f"local.lr is 0, but algorithm {name!r} divides by the rate; above 0 was expected")
    if algorithm.personal and "teacher" in job.objective.needs:
        raise InputError(
            f"objective {objective!r} learns from the global model, and with algorithm {name!r} there is none"
        )
    if algorithm.personal and recipe.keep == "best":
        raise InputError(f"keep is 'best', but with algorithm {name!r} there is no one model; 'last' was expected")
    if least_samples(flat.module) > 1:
        refuse_single_samples(recipe, federation, pooled=algorithm.pooled)
    if "features" in algorithm.needs:
        Representation(flat.module, algorithm.representation)
    if recipe.batch_norm == "local" and not algorithm.personal:  # else statistics are the client's own anyway
        refuse_local_statistics(recipe, job, federation)


def refuse_local_statistics(recipe: Recipe, job: Job, federation: Federation) -> None:
    """With statistics that stay with the clients there is no one model."""
    if job.algorithm.pooled:
        raise InputError(
            f"batch_norm is 'local', but algorithm {recipe.algorithm['name']!r} has one client with all data: "
            "'average' was expected"
        )
    if federation.test is not None and recipe.tested_rounds:
        raise InputError(
            "batch_norm is 'local': every client has statistics of its own, so there is no one model to test on "
            "the pooled test set; say evaluation.test_last=0"
        )
    if federation.assignment.held_out:
        raise InputError("batch_norm is 'local', but held-out clients have no statistics: partition.held_out=0")


def refuse_single_samples(recipe: Recipe, federation: Federation, *, pooled: bool) -> None:
    """Raise an `InputError` if some client's batches have one sample each: batch norm has no statistics of one."""
    if recipe.local.batch_size < 2:
        raise InputError("local.batch_size is 1, but batch norm needs two samples in a batch")
    sizes = federation.train_sizes(np.arange(federation.population))
    if not pooled and sizes.min() < 2:
        raise InputError(f"client {sizes.argmin()} has one training sample, but batch norm needs two in a batch")
