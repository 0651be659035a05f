"""Distribution of a study's runs over a Ray cluster, and the resources of each run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from fedrecall.backend.device import device_elsewhere
from fedrecall.engines.ray.cluster import Cluster, Resources, resources_of_worker
from fedrecall.errors import InputError
from fedrecall.recipe.files import Tree
from fedrecall.recipe.recipe import Recipe
from fedrecall.recipe.settings import Execution
from fedrecall.studies.cells import PlannedRun

RAY = "ray"


@dataclass(frozen=True)
class Placement:
    """The cluster that runs are spread over, and the resources that each run takes of a node."""

    address: str | None
    asked: Resources

    @classmethod
    def of(cls, runs: Sequence[PlannedRun]) -> Placement | None:
        """Return the cluster and resources for the runs, which share one engine; None if it is not `ray`."""
        first = runs[0].recipe.execution
        for key in ("engine", "ray_address", "resources"):
            given = {json.dumps(getattr(run.recipe.execution, key), sort_keys=True) for run in runs}
            if len(given) > 1 and any(run.recipe.execution.engine == RAY for run in runs):
                raise InputError(
                    f"execution.{key} is {' and '.join(sorted(given))} in runs of the study; one for all was "
                    f"expected, as the engine {RAY!r} spreads runs over one cluster"
                )
        if first.engine != RAY:
            return None
        asked: dict[str, float] = {}
        for run in runs:
            for name, share in resources_of(run.recipe).items():
                asked[name] = max(share, asked.get(name, 0.0))
        return cls(first.ray_address, asked)

    def room(self) -> int:
        """Return the number of runs that fit the cluster at once; raise an `InputError` if none does."""
        with closing(Cluster(self.address)) as cluster:
            return cluster.refuse_too_little(self.asked, None)


def resources_of(recipe: Recipe) -> dict[str, float]:
    execution = recipe.execution
    device = device_elsewhere(execution.device, execution.resources or {})
    return resources_of_worker(execution, recipe.local.threads, device.partition(":")[0])


def in_one_process(run: PlannedRun) -> PlannedRun:
    """Return the run with the engine `serial`, which gives the same bits as `ray`, for execution in one actor."""
    execution = run.recipe.execution
    if execution.client_timeout is not None:
        raise InputError(
            f"execution.client_timeout is {execution.client_timeout}, but the engine {RAY!r} carries out each run "
            "of a study in one process, which has no workers that could be replaced; none was expected"
        )
    alone = Execution(
        **{**execution.model_dump(), "engine": "serial", "workers": 1, "ray_address": None, "resources": None}
    )
    return replace(run, recipe=Recipe(**{**run.recipe.tree(), "execution": alone.model_dump()}))


def refuse_workers(execution: Tree) -> None:
    """Raise an `InputError` if several workers per run are asked for; each run takes one process."""
    if str(execution.get("workers", 1)) not in ("1", "auto"):
        raise InputError(
            f"execution.workers is {execution['workers']}, but the engine {RAY!r} carries out each run of a study "
            "in one process; --jobs says how many go at once"
        )
