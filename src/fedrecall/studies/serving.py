"""A worker process of a study: it executes the runs that it is sent, one after the other.

The output of a run goes to its log. If the study's process is gone, this one exits at once; the run can be resumed
from its last checkpoint. Unlike those of engines, messages are about runs, not tasks; `Shutdown` is the same.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from fedrecall.api.execute import RunPlan, execute, load_federation
from fedrecall.engines.messages import Shutdown
from fedrecall.engines.processes.connection import receive
from fedrecall.errors import ClientError, DivergedError, InputError, Note
from fedrecall.measure.watcher import Round, Watcher
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs.folder import RunFolder
from fedrecall.runs.reader import is_run
from fedrecall.simulation.experiment import build
from fedrecall.storage.atomic_files import explain_write_errors
from fedrecall.user_code import their_traceback

PAUSE = 0.2  # seconds between two reports of a run's progress


@dataclass(frozen=True)
class RunOrder:
    """A run to execute or, if its folder has a checkpoint, to resume."""

    recipe: dict[str, Any]
    folder: Path
    log: Path


@dataclass(frozen=True)
class RoundDone:
    """A round of the current run is done."""

    number: int


@dataclass(frozen=True)
class Ended:
    """How a run ended, with its log and packed folder if it ran outside the study's folder."""

    kind: str  # "finished", "failed", "diverged" or "interrupted"
    words: str
    log: str = ""
    folder: np.ndarray | None = None


class ProgressReporter(Watcher):
    """Reports the progress of a run to the study's process."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.reported = connection, 0.0

    def after(self, round: Round) -> None:
        if time.monotonic() - self.reported >= PAUSE:
            self.reported = time.monotonic()
            self.connection.send(RoundDone(round.number))


def run_worker(connection: Connection) -> None:
    """Execute the runs that are received, until `Shutdown`."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to write a checkpoint before the end
    orders: SimpleQueue[RunOrder | Shutdown] = SimpleQueue()
    threading.Thread(target=listen, args=(connection, orders), daemon=True).start()
    try:
        while isinstance(order := orders.get(), RunOrder):
            with printing_to(order.log):
                ended = execute_run(order, ProgressReporter(connection))
            connection.send(ended)
            if ended.kind == "interrupted":
                return
    except KeyboardInterrupt:  # between two runs
        return


def listen(connection: Connection, orders: SimpleQueue[RunOrder | Shutdown]) -> None:
    """Receive orders while a run is executed; exit if the study's process is gone."""
    try:
        while isinstance(order := receive(connection), RunOrder):
            orders.put(order)
        orders.put(order)
    except EOFError:
        os._exit(1)


def execute_run(order: RunOrder, watcher: Watcher) -> Ended:
    """Execute a run, or resume it from its last checkpoint; return how it ended."""
    try:
        plan = run_plan_of(order)
        with closing(plan.experiment.federation):  # the next run does not need its files
            execute([plan], report=None, quiet=True, callbacks=[watcher])
    except KeyboardInterrupt as stop:
        return Ended("interrupted", str(stop))
    except DivergedError as error:
        print(f"fedrecall: diverged: {error}", file=sys.stderr)
        return Ended("diverged", str(error))
    except InputError as error:
        print(f"fedrecall: error: {error}", file=sys.stderr)
        return Ended("failed", str(error))
    except (Exception, SystemExit) as error:
        lines = [str(error), *getattr(error, "__notes__", ())] if isinstance(error, ClientError) else []
        print("\n".join(lines) or their_traceback(error), file=sys.stderr)
        return Ended("failed", f"{type(error).__name__}; see {order.log.name}")
    return Ended("finished", "")


def run_plan_of(order: RunOrder) -> RunPlan:
    """Return the plan of a new or resumed run."""
    recipe = Recipe(**order.recipe)
    federation = load_federation(recipe)
    resumed = is_run(order.folder)
    experiment = build(recipe, federation, run=order.folder if resumed else None)
    with explain_write_errors(order.folder):
        order.folder.mkdir(parents=True, exist_ok=True)  # exists if a process was killed as it began
    return RunPlan(experiment, RunFolder(order.folder), order.folder.name, resume=resumed)


@contextmanager
def printing_to(log: Path) -> Iterator[None]:
    """Append the output of this process, of libraries too, to the log; delete an empty log at the end."""
    log.parent.mkdir(parents=True, exist_ok=True)
    kept = [os.dup(number) for number in (1, 2)]
    with log.open("ab", buffering=0) as file, warnings.catch_warnings():
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        warnings.simplefilter("always", Note)
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            for number, before in zip((1, 2), kept):
                os.dup2(before, number)
                os.close(before)
    if not log.stat().st_size:
        log.unlink()
