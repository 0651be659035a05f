"""Which engine a run gets, and which of them `auto` means."""

from __future__ import annotations

from torch import nn

from fedrecall.client.work import Job
from fedrecall.engines import ENGINES, Engine, Processes, Serial, Vectorised
from fedrecall.engines.cpus import usable_cpus
from fedrecall.errors import InputError, nearest
from fedrecall.recipe.settings import Execution

# Starting workers takes about five seconds, and a core does some 2e10 operations a second on small models: below
# this many in a whole run, two workers save less than they cost.
WORTH_WORKERS = 2.5e11
# A message to a worker and back takes as long as some such operations do: a client's training should be more.
WORTH_A_MESSAGE = 2e7
# Batches of models pay off for many clients with narrow dense layers; wide ones fill the cache by themselves.
MANY_CLIENTS = 32
NARROW = 128
DENSE = (nn.Linear, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Flatten, nn.Identity)


def check_execution(execution: Execution) -> None:
    """An `InputError` if the settings ask an engine for what it has not."""
    name, most = execution.engine, None
    if name != "auto":
        if name not in ENGINES:
            raise InputError(f"execution.engine is {name!r}; {nearest(name, ['auto', *ENGINES])}")
        most = ENGINES[name].most_workers
        if execution.client_timeout is not None and not ENGINES[name].replaces_workers:
            able = " or ".join(repr(other) for other, kind in ENGINES.items() if kind.replaces_workers)
            raise InputError(
                f"execution.client_timeout is {execution.client_timeout}, but the engine {name!r} has no worker "
                f"processes that could be replaced; choose {able}"
            )
    if most is not None and execution.workers != "auto" and execution.workers > most:
        raise InputError(f"execution.workers is {execution.workers}; the engine {name!r} has one worker")


def choose(
    execution: Execution, job: Job, module: nn.Module, clients_per_round: int, client_flops: int, rounds: int
) -> Engine:
    """The engine for a run in which a client's training takes so many operations. `auto` goes by this work, never
    by a timing."""
    check_execution(execution)
    workers = usable_cpus() if execution.workers == "auto" else execution.workers
    if execution.engine != "auto":
        return ENGINES[execution.engine].create(workers, execution)
    if clients_per_round >= MANY_CLIENTS and is_narrow_and_dense(module) and Vectorised.why_not(job) is None:
        return Vectorised.create(workers, execution)
    enough = client_flops >= WORTH_A_MESSAGE and rounds * clients_per_round * client_flops >= WORTH_WORKERS
    kind = Processes if enough and min(workers, clients_per_round) > 1 else Serial
    return kind.create(min(workers, clients_per_round), execution)


def is_narrow_and_dense(module: nn.Module) -> bool:
    """Nothing but linear layers, all but the last narrow, in a row: such a model can be mapped for sure."""
    inner = list(module.modules())
    if not all(type(layer) in (nn.Sequential, *DENSE) for layer in inner):
        return False
    widths = [layer.out_features for layer in inner if isinstance(layer, nn.Linear)]
    return all(width <= NARROW for width in widths[:-1])
