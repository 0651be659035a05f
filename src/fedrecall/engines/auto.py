"""The engines, and which of them `auto` means."""

from __future__ import annotations

from torch import nn

from fedrecall.client.work import Job
from fedrecall.engines.cpus import usable_cpus
from fedrecall.engines.engine import Engine
from fedrecall.engines.processes.engine import Processes
from fedrecall.engines.serial import Serial
from fedrecall.engines.vectorised import Vectorised, why_not
from fedrecall.recipe.settings import Execution

# Starting workers takes seconds; below this many local steps in a whole run it is not worth it.
WORTH_WORKERS = 2000
# Batches of models pay off for many clients with narrow dense layers; wide ones fill the cache by themselves.
MANY_CLIENTS = 32
NARROW = 128
DENSE = (nn.Linear, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Flatten, nn.Identity)


def choose(execution: Execution, job: Job, module: nn.Module, clients_per_round: int, local_steps: int) -> Engine:
    """The engine for a run of this many local steps. `auto` goes by the work, never by a timing."""
    workers = usable_cpus() if execution.workers == "auto" else execution.workers
    if execution.engine == "auto":
        if clients_per_round >= MANY_CLIENTS and is_narrow_and_dense(module) and why_not(job) is None:
            return Vectorised(workers)
        parallel = local_steps >= WORTH_WORKERS and min(workers, clients_per_round) > 1
        return Processes(min(workers, clients_per_round), execution.client_timeout) if parallel else Serial()
    if execution.engine == "vectorised":
        return Vectorised(workers)
    return Serial() if execution.engine == "serial" else Processes(workers, execution.client_timeout)


def is_narrow_and_dense(module: nn.Module) -> bool:
    """Nothing but linear layers, all but the last narrow, in a row: such a model can be mapped for sure."""
    inner = list(module.modules())
    if not all(type(layer) in (nn.Sequential, *DENSE) for layer in inner):
        return False
    widths = [layer.out_features for layer in inner if isinstance(layer, nn.Linear)]
    return all(width <= NARROW for width in widths[:-1])
