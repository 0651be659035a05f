"""Which way a run's steps are taken: decided once, here, by recipe, model structure and processor."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedrecall.client.job import Job
from fedrecall.client.lanes.chain import UnsupportedError
from fedrecall.client.lanes.lowering import Lowering, lower
from fedrecall.data.federation import Federation
from fedrecall.models.build import dry_batch
from fedrecall.vector import FlatModel


@dataclass(frozen=True)
class Steps:
    """How the steps of a job are taken."""

    job: Job  # with what kernels compute of them
    note: str | None = None  # why they are not in lanes, though the recipe asks for that


def decide_steps(job: Job, federation: Federation, flat: FlatModel, *, on_cpu: bool) -> Steps:
    """Return the job with its kernels, which were checked against float64, where the recipe asks for them."""
    if job.local.step != "lanes":
        return Steps(job)
    from fedrecall.client.lanes.check import check_samples  # a compiler, loaded only where it is needed

    try:
        if not on_cpu:
            raise UnsupportedError("a device other than the CPU")
        lowering = lowering_of(job, federation, flat)
        check_samples(lowering, job.local, flat, job.objective)
    except UnsupportedError as error:
        return Steps(job, f"steps are exact and not in lanes: {error}")
    return Steps(replace(job, lowering=lowering))


def lowering_of(job: Job, federation: Federation, flat: FlatModel) -> Lowering:
    """Return what kernels compute of a job's steps; raise `UnsupportedError` where there are none."""
    x = dry_batch(federation, flat.w.dtype)
    return lower(flat, x, federation.transform, job.local, job.algorithm, job.objective, job.optimiser)


def advice_on_steps(job: Job, federation: Federation, flat: FlatModel) -> str | None:
    """Return a sentence for the user of exact steps whose model has kernels that are clearly faster."""
    if job.local.step != "exact":
        return None
    try:
        pays = lowering_of(job, federation, flat).pays
    except Exception:  # whatever the user's model does: the run is done
        return None
    return "local.step=lanes would train this model several times as fast (docs/engines.md)" if pays else None
