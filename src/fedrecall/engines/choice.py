"""The engines, and which of them `auto` means."""

from __future__ import annotations

from fedrecall.engines.base import Engine
from fedrecall.engines.cpus import usable_cpus
from fedrecall.engines.processes import Processes
from fedrecall.engines.serial import Serial
from fedrecall.settings import Execution

# Starting workers takes seconds; below this many local steps in a whole run it is not worth it.
WORTH_WORKERS = 2000


def choose(execution: Execution, clients_per_round: int, local_steps: int) -> Engine:
    """The engine for a run of this many local steps. `auto` goes by the work, never by a timing."""
    workers = usable_cpus() if execution.workers == "auto" else execution.workers
    if execution.engine == "auto":
        parallel = local_steps >= WORTH_WORKERS and min(workers, clients_per_round) > 1
        return Processes(min(workers, clients_per_round)) if parallel else Serial()
    return Serial() if execution.engine == "serial" else Processes(workers)
