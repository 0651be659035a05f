"""Decides once whether a run's steps are exact or in lanes, by recipe, model and processor."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedrecall.client.job import Job
from fedrecall.client.lanes.lowering import Lowering, lower
from fedrecall.client.lanes.model_reader import UnsupportedError
from fedrecall.core.vector import FlatModel
from fedrecall.data.federation import Federation
from fedrecall.models.build import dry_batch


@dataclass(frozen=True)
class Steps:
    """The decision about the steps of a job."""

    job: Job  # with its lowering, if steps are in lanes
    note: str | None = None  # why steps are not in lanes, if the recipe asks for lanes


def decide_steps(job: Job, federation: Federation, flat: FlatModel, *, on_cpu: bool) -> Steps:
    """Return the job with its lowering, checked against float64, if the recipe asks for lanes."""
    if job.local.step != "lanes":
        return Steps(job)
    from fedrecall.client.lanes.check import check_samples  # imports a compiler, so only when needed

    try:
        if not on_cpu:
            raise UnsupportedError("a device other than the CPU")
        lowering = lowering_of(job, federation, flat)
        check_samples(lowering, job.local, flat, job.objective)
    except UnsupportedError as error:
        return Steps(job, f"steps are exact and not in lanes: {error}")
    return Steps(replace(job, lowering=lowering))


def lowering_of(job: Job, federation: Federation, flat: FlatModel) -> Lowering:
    """Return the lowering of a job's steps; raise `UnsupportedError` if there is none."""
    x = dry_batch(federation, flat.w.dtype)
    return lower(flat, x, federation.transform, job.local, job.algorithm, job.objective, job.optimiser)


def advice_on_steps(job: Job, federation: Federation, flat: FlatModel) -> str | None:
    """Return the advice to use lanes, if steps are exact and kernels would be clearly faster."""
    if job.local.step != "exact":
        return None
    try:
        pays = lowering_of(job, federation, flat).pays
    except Exception:  # user code may raise anything, and the run is already done
        return None
    return "local.step=lanes would train this model several times as fast (docs/engines.md)" if pays else None
