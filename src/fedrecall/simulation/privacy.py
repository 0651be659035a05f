"""Differential privacy of a run: what it can be combined with, and the epsilon that it spends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fedrecall.client.job import Job
from fedrecall.core.vector import FlatModel
from fedrecall.data.federation import Federation
from fedrecall.errors import InputError, short_repr
from fedrecall.participation import Participation
from fedrecall.recipe.recipe import Recipe
from fedrecall.updates import DifferentialPrivacy
from fedrecall.updates.privacy_accounting import NoisySums

if TYPE_CHECKING:
    from fedrecall.simulation.experiment import Experiment

RELATIONS = {  # the relations under which a sampling method is accounted for; the first is the default
    "poisson": ("add-or-remove-one",),
    "without-replacement": ("replace-one",),
    "no-amplification": ("replace-one", "add-or-remove-one"),
}
NOT_COVERED = (
    "everything but the global model: metrics, losses and accuracies of clients, the partition and its card",
    "clients' own states and models, which stay with them in a deployment and are files of a simulated run",
    "the choice of hyperparameters, of the best round or of the round to stop at by validation data",
    "readers of the recipe: its seed gives the noise and who was chosen",
    "a server that keeps or shows single updates: it is trusted to clip, to add the noise and to forget them",
)


def private_stage(job: Job) -> DifferentialPrivacy | None:
    """Return the stage that makes a run differentially private, if it has one."""
    return next((stage for stage in job.pipeline.stages if isinstance(stage, DifferentialPrivacy)), None)


def check_privacy(
    recipe: Recipe, job: Job, federation: Federation, flat: FlatModel, participation: Participation
) -> None:
    """Raise an `InputError` if clients would release more than noisy sums, or the run would cost too much."""
    stage = private_stage(job)
    if stage is None:
        return
    if any(isinstance(other, DifferentialPrivacy) for other in job.pipeline.stages[1:]):
        raise InputError("updates has 'dp' in another place than the first, where it clips what all others decode")
    refuse_other_releases(recipe, job, flat)
    sums = noisy_sums(stage, participation, federation.population)
    spent = sums.epsilon(recipe.rounds, stage.target_delta)
    if stage.max_epsilon is not None and spent > stage.max_epsilon:
        rounds = sums.affordable_rounds(recipe.rounds, stage.target_delta, stage.max_epsilon)
        raise InputError(
            f"updates.max_epsilon is {stage.max_epsilon:g}, but {recipe.rounds} rounds would spend {spent:.4g} at "
            f"delta {stage.target_delta:g}; expected at most {rounds} rounds, or a larger noise_multiplier than "
            f"{stage.noise_multiplier:g}"
        )


def refuse_other_releases(recipe: Recipe, job: Job, flat: FlatModel) -> None:
    """Raise an `InputError` if something about clients would leave them beside the noisy sums."""
    algorithm, objective = recipe.algorithm["name"], recipe.objective["name"]
    if flat.has_buffers and not job.own_buffers:
        raise InputError(
            "batch_norm is 'average', but with the stage 'dp' of updates noise would make variances negative; "
            "expected 'local', or a model without such statistics"
        )
    if job.objective.asks_population:
        raise InputError(
            f"objective {objective!r} asks for the class shares of all clients (prior: pooled), which the stage 'dp' "
            "of updates does not cover"
        )
    if recipe.evaluation.prior != "as_trained":
        raise InputError(
            f"evaluation.prior is {short_repr(recipe.evaluation.prior)}, which takes the class shares of all clients; "
            "with the stage 'dp' of updates 'as_trained' was expected"
        )
    if job.algorithm.discloses:
        what = ", ".join(sorted(job.algorithm.discloses)).replace("_", " ")
        raise InputError(
            f"algorithm {algorithm!r} takes {what} of single clients, which the stage 'dp' of updates does not cover"
        )
    if job.averages_moments:
        raise InputError(
            "local.optimiser.state is 'average', but the moments of an optimiser are not covered by the stage 'dp' of "
            "updates; expected 'reset' or 'keep'"
        )
    if "fisher" in job.algorithm.needs:
        raise InputError(
            f"algorithm {algorithm!r} sums Fisher information, which the noise of the stage 'dp' would make negative"
        )


def notes_on_privacy(experiment: Experiment) -> Iterator[str]:
    """Yield a note for the user if delta allows to publish a client."""
    stage, population = private_stage(experiment.job), experiment.federation.population
    if stage is not None and stage.target_delta * population >= 1:
        yield (
            f"updates.target_delta is {stage.target_delta:g}: with {population} clients it should be well below "
            f"{1 / population:g}, because publishing one client at random would also keep it"
        )


def noisy_sums(stage: DifferentialPrivacy, participation: Participation, population: int) -> NoisySums:
    """Return the releases of a run for the sampling that is really done."""
    really = (participation.sampling or "no-amplification").replace("_", "-")
    method = stage.sampling_method or really
    if method not in (really, "no-amplification"):
        raise InputError(
            f"updates.sampling_method is {method!r}, but participation {type(participation).__name__} is not that; "
            f"expected {really!r}" + ("" if really == "no-amplification" else " or 'no-amplification'")
        )
    relation = stage.neighboring_relation or RELATIONS[method][0]
    if relation not in RELATIONS[method]:
        raise InputError(
            f"updates.neighboring_relation is {relation!r}; with the sampling method {method!r} "
            f"{RELATIONS[method][0]!r} was expected"
        )
    chosen = float(participation.expected(population))
    # A client less must not change which others are chosen.
    others_change = really != "poisson" and chosen < population
    if method == "no-amplification" and relation == "add-or-remove-one" and others_change:
        raise InputError(
            "updates.neighboring_relation is 'add-or-remove-one', but one client less changes which others are "
            "chosen; 'replace-one' was expected"
        )
    if method == "poisson":
        chosen = float(participation.fraction)  # type: ignore[attr-defined]
    return NoisySums(stage.noise_multiplier, relation, method, chosen, population)


def privacy_spent(experiment: Experiment, rounds: int) -> dict[str, Any] | None:
    """Return what a run's summary says about its privacy; None without a private stage."""
    stage = private_stage(experiment.job)
    if stage is None:
        return None
    sums = noisy_sums(stage, experiment.participation, experiment.federation.population)
    return {
        "epsilon": sums.epsilon(rounds, stage.target_delta),
        "delta": stage.target_delta,
        "unit": "client",
        "neighboring_relation": sums.relation,
        "sampling_method": sums.sampling,
        "noise_multiplier": stage.noise_multiplier,
        "clipping_norm": stage.clipping_norm,
        "expected_clients": experiment.count,
        "population": experiment.federation.population,
        "releases": rounds,
        "accountant": "rdp (dp-accounting)",
        "covers": "the sequence of global models, against whoever sees them but not the server's work",
        "not_covered": list(NOT_COVERED),
    }
