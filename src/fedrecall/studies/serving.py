"""What a worker process of a study does: it carries out the runs that it is given, one after the other.

What a run prints goes to its log. If the study's process is gone, killed perhaps, so is this one at once; the run
then goes on from its last checkpoint.
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

from fedrecall.atomic_files import explain_write_errors
from fedrecall.engines.processes.connection import receive
from fedrecall.errors import ClientError, DivergedError, InputError, Note
from fedrecall.front.execute import Plan, execute, load_federation
from fedrecall.measure.watcher import Round, Watcher
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs.folder import RunFolder
from fedrecall.runs.reader import is_run
from fedrecall.simulation.experiment import build
from fedrecall.user_code import their_traceback

PAUSE = 0.2  # seconds between two words about how far a run is

Answer = tuple[str, Any]  # ("round", its number), or how the run ended and why


@dataclass(frozen=True)
class Order:
    """A run to be carried out, or to go on with."""

    recipe: dict[str, Any]
    folder: Path
    log: Path


class Told(Watcher):
    """Tells the study's process how far the run is."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.told = connection, 0.0

    def after(self, round: Round) -> None:
        if time.monotonic() - self.told >= PAUSE:
            self.told = time.monotonic()
            self.connection.send(("round", round.number))


def begin(connection: Connection) -> None:
    """Answer orders until there is none."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a checkpoint, then the end
    orders: SimpleQueue[Order | None] = SimpleQueue()
    threading.Thread(target=listen, args=(connection, orders), daemon=True).start()
    try:
        while (order := orders.get()) is not None:
            with printing_to(order.log):
                answer = carry_out(order, Told(connection))
            connection.send(answer)
            if answer[0] == "interrupted":
                return
    except KeyboardInterrupt:  # between two runs
        return


def listen(connection: Connection, orders: SimpleQueue[Order | None]) -> None:
    """Take orders while a run goes, and notice that nobody is there to give any."""
    try:
        while (order := receive(connection)) is not None:
            orders.put(order)
        orders.put(None)
    except EOFError:
        os._exit(1)


def carry_out(order: Order, watcher: Watcher) -> Answer:
    """The run from where it is to its end: how that was, and what is to be said about it."""
    try:
        plan = plan_of(order)
        with closing(plan.experiment.federation):  # its files are of no use to the next run
            execute([plan], report=None, quiet=True, callbacks=[watcher])
    except KeyboardInterrupt as stop:
        return "interrupted", str(stop)
    except DivergedError as error:
        print(f"fedrecall: diverged: {error}", file=sys.stderr)
        return "diverged", str(error)
    except InputError as error:
        print(f"fedrecall: error: {error}", file=sys.stderr)
        return "failed", str(error)
    except (Exception, SystemExit) as error:
        told = [str(error), *getattr(error, "__notes__", ())] if isinstance(error, ClientError) else []
        print("\n".join(told) or their_traceback(error), file=sys.stderr)
        return "failed", f"{type(error).__name__}; see {order.log.name}"
    return "finished", ""


def plan_of(order: Order) -> Plan:
    """The run, new or from its last checkpoint."""
    recipe = Recipe(**order.recipe)
    federation = load_federation(recipe)
    resumed = is_run(order.folder)
    experiment = build(recipe, federation, run=order.folder if resumed else None)
    with explain_write_errors(order.folder):
        order.folder.mkdir(parents=True, exist_ok=True)  # there already, if a process was killed as it began
    return Plan(experiment, RunFolder(order.folder), order.folder.name, resume=resumed)


@contextmanager
def printing_to(log: Path) -> Iterator[None]:
    """Inside, whatever is printed here and by libraries is added to the log."""
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
