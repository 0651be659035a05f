"""Carries out runs, from the folder through the rounds to the report, for every command and `federate`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedrecall.api.callbacks import Watching
from fedrecall.api.tracking import as_watchers
from fedrecall.data.federation import Federation
from fedrecall.data.sources import DataSet
from fedrecall.engines.auto import check_execution
from fedrecall.errors import InputError, TooFewClientsError, WriteError
from fedrecall.measure.watcher import Watcher
from fedrecall.recipe.display_titles import titles
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs.folder import RunFolder
from fedrecall.simulation.experiment import Experiment
from fedrecall.simulation.loop import run_experiment
from fedrecall.simulation.progress import ProgressLine
from fedrecall.simulation.resume import resume_experiment
from fedrecall.trackers import Tracker
from fedrecall.user_code import note_key


@dataclass(frozen=True)
class RunPlan:
    """A run to be carried out: the experiment, the folder it is written to and the title of its progress."""

    experiment: Experiment
    folder: RunFolder
    title: str
    resume: bool = False  # continue the run in the folder
    force: bool = False  # resume even with another recipe
    other_device: bool = False  # resume even on another device


def execute(
    plans: Sequence[RunPlan], *, report: Path | None, quiet: bool, callbacks: Sequence[Watcher | Tracker] = ()
) -> list[dict[str, Any]]:
    """Carry out runs one after the other, write the report about all of them and return their summaries."""
    summaries = []
    for number, plan in enumerate(plans):
        with ProgressLine(plan.title, plan.experiment.recipe.rounds, quiet=quiet) as progress:
            watchers = as_watchers([progress, *plan.experiment.trackers, *callbacks])
            observers = [Watching(watcher) for watcher in watchers]
            if plan.resume:
                allowed = {"force": plan.force, "other_device": plan.other_device}
                summary = resume_experiment(plan.folder, plan.experiment, observers, **allowed)
            else:
                with leaving_nothing_if_refused(plans[number:]):
                    summary = run_experiment(plan.experiment, plan.folder, observers)
        summaries.append(summary)
    if report is not None:
        try:
            write_report([plan.folder.path for plan in plans], report)
        except WriteError as error:
            what = "the run is" if len(plans) == 1 else "the runs are"
            raise WriteError(
                f"{error}; {what} complete: {error.remedy}, and this makes the page: "
                f"fedrecall report {shlex.quote(str(report.parent))}"
            ) from None
    return summaries


@contextmanager
def leaving_nothing_if_refused(plans: Sequence[RunPlan]) -> Iterator[None]:
    """Delete the folders of these runs if the first is refused before its first round.

    A begun run there would only stand in the way of the corrected command.
    """
    try:
        yield
    except (WriteError, TooFewClientsError):  # these runs can be resumed
        raise
    except InputError:
        if plans[0].folder.has_no_round():
            for plan in plans:
                plan.folder.discard()
        raise


def new_folder(out: str | Path | None, default: str) -> RunFolder:
    """Make the folder `out`, or a new one named `default` below `runs`."""
    return RunFolder.create_new(Path("runs"), default) if out is None else RunFolder.create(Path(out))


def write_report(runs: Sequence[str | Path], out: str | Path) -> Path:
    """Write the report about runs, or folders of runs, to `out` and return its path."""
    from fedrecall.report.page import write_report_page  # only needed for reports

    return write_report_page([Path(run) for run in runs], Path(out), titles())


def load_federation(recipe: Recipe) -> Federation:
    """Return the federation of the data and the partition that a recipe names."""
    check_execution(recipe.execution)  # before reading data, which may take long
    data = recipe.create("data", folder=recipe.execution.data)
    if not isinstance(data, DataSet):
        raise InputError(f"data is {recipe.data['name']!r}, which returned a {type(data).__name__}; expected a DataSet")
    partition, name = recipe.create("partition", folder=recipe.execution.data), recipe.partition["name"]
    try:
        federation = Federation.from_data(data, partition)
    except InputError:
        raise
    except Exception as error:
        if ":" in name:  # user code, which runs only here
            note_key(error, "partition", name)
        raise
    federation.data = partial(recipe.create, "data", folder=None)  # from FEDRECALL_DATA of the reader's machine
    return federation
