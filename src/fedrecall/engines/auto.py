"""The choice of a run's engine, including the rule for `auto`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import nn

from fedrecall.backend.device import CPU, Device, choose_devices, device_elsewhere, find_devices
from fedrecall.client.job import Job
from fedrecall.client.lanes.kernels.ir import LANES
from fedrecall.client.lanes.lowering import unsupported_reason
from fedrecall.engines import ENGINES, Engine, Processes, Serial, Vectorised
from fedrecall.engines.cpus import usable_cpus
from fedrecall.errors import InputError, Note, nearest
from fedrecall.recipe.settings import Execution

# Operations of a whole run below which two workers save less than they cost: starting workers takes about five
# seconds, and a core does about 2e10 operations a second on small models.
WORTH_WORKERS = 2.5e11
# Operations that take as long as a message to a worker and back: a client's training should take more.
WORTH_A_MESSAGE = 2e7
# Workers per CPU above which more only take memory: a worker computes nearly all of its time.
MOST_PER_CPU = 8
# Batches of models pay off for many clients with narrow dense layers; a wide layer fills the cache by itself.
MANY_CLIENTS = 32
NARROW = 128
DENSE = (nn.Linear, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Flatten, nn.Identity)


def requested_engine(execution: Execution) -> type[Engine] | None:
    """Return the engine that the settings request by name or by a cluster's address; None if `auto` decides."""
    name = execution.engine
    if name != "auto":
        if name not in ENGINES:
            raise InputError(f"execution.engine is {name!r}; {nearest(name, ['auto', *ENGINES])}")
        return ENGINES[name]
    clusters = [kind for kind in ENGINES.values() if kind.elsewhere]
    return clusters[0] if execution.ray_address is not None else None


def check_execution(execution: Execution) -> None:
    """Raise an `InputError` if the engine or this machine lacks something that the settings ask for."""
    name, kind = execution.engine, requested_engine(execution)
    if execution.device != "auto" and not (kind and kind.elsewhere):
        find_devices(execution.device)
    if kind is None:
        return
    kind.check(execution)
    if execution.client_timeout is not None and not kind.replaces_workers:
        able = " or ".join(repr(other) for other, one in ENGINES.items() if one.replaces_workers)
        raise InputError(
            f"execution.client_timeout is {execution.client_timeout}, but the engine {name!r} has no worker "
            f"processes that could be replaced; choose {able}"
        )
    if kind.most_workers is not None and execution.workers != "auto" and execution.workers > kind.most_workers:
        raise InputError(f"execution.workers is {execution.workers}; the engine {name!r} has one worker")


def choose_engine(
    execution: Execution,
    job: Job,
    module: nn.Module,
    clients_per_round: int,
    client_flops: int,
    rounds: int,
    devices: Sequence[str] = ("cpu",),
    *,
    fills_lanes: bool = False,
) -> Engine:
    """Return the engine for a run. `auto` decides by the work (`client_flops`), never by timing."""
    check_execution(execution)
    fits = fills_lanes or is_narrow_and_dense(module)
    many_small = clients_per_round >= MANY_CLIENTS and fits and Vectorised.why_not(job) is None
    asked = requested_engine(execution)
    if asked is not None:
        kind, most = asked, None
    elif many_small:
        kind, most = Vectorised, None
    else:
        kind, most = Processes, clients_per_round
    workers = worker_count(kind, execution, devices)
    if not kind.elsewhere:  # a cluster refuses more workers than it has room for
        workers = capped_workers(workers, clients_per_round, cpus=max(usable_cpus(), len(devices)))
    if most is not None:
        workers = min(workers, most)
        enough = client_flops >= WORTH_A_MESSAGE and rounds * clients_per_round * client_flops >= WORTH_WORKERS
        kind = Processes if workers > 1 and (enough or devices[0] != "cpu") else Serial
    return kind.create(workers, execution, shared(devices, workers, execution))


def devices_for(execution: Execution, step_operations: float, dtype: torch.dtype) -> list[str]:
    """Return the devices that a run's workers train on, on this machine or on a cluster."""
    kind = requested_engine(execution)
    if kind is not None and kind.elsewhere:
        return [device_elsewhere(execution.device, execution.resources or {})]
    return choose_devices(execution.device, step_operations, dtype)


def worker_count(kind: type[Engine], execution: Execution, devices: Sequence[str]) -> int:
    """Return the number of workers: by default one per CPU; on accelerators, only `processes` has several."""
    if execution.workers != "auto":
        return execution.workers
    if devices[0] == "cpu":
        return usable_cpus()
    return len(devices) * execution.workers_per_device if kind is Processes else 1


def capped_workers(workers: int, clients_per_round: int, cpus: int) -> int:
    """Return the number of workers, or the most that can have work, with a `Note` that says so."""
    per_round = max(clients_per_round, cpus)  # evaluations keep all CPUs busy, however few clients train
    most, why = min(
        (per_round, f"a round has {clients_per_round} client{'s' if clients_per_round != 1 else ''}"),
        (MOST_PER_CPU * cpus, f"{MOST_PER_CPU} for each of the {cpus} CPUs are the most"),
    )
    if workers <= most:
        return workers
    warnings.warn(f"execution.workers is {workers}, of which {most} are started: {why}", Note, stacklevel=2)
    return most


def shared(devices: Sequence[str], workers: int, execution: Execution) -> list[Device]:
    """Return the devices that the workers use, each with the number of workers that share it."""
    if devices[0] == "cpu":
        return [CPU]
    used = devices[:workers]
    return [
        Device(name, execution.deterministic, execution.tf32, -(-(workers - place) // len(used)))
        for place, name in enumerate(used)
    ]


def clients_fill_lanes(job: Job) -> bool:
    """Whether batches leave lanes empty that kernels for the whole step can fill with other clients."""
    if job.lowering is None or job.local.batch_size >= LANES:
        return False
    return unsupported_reason(job.lowering, job.algorithm) is None


def is_narrow_and_dense(module: nn.Module) -> bool:
    """Whether the model is a sequence of dense layers, narrow except the last; such a model can be mapped."""
    inner = list(module.modules())
    if not all(type(layer) in (nn.Sequential, *DENSE) for layer in inner):
        return False
    widths = [layer.out_features for layer in inner if isinstance(layer, nn.Linear)]
    return all(width <= NARROW for width in widths[:-1])
