"""Carrying out runs: from a folder through the rounds to the page. Every command and `federate` end up here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedrecall.data.federation import Federation
from fedrecall.data.sources import DataSet
from fedrecall.engines.auto import check_execution
from fedrecall.errors import InputError, WriteError
from fedrecall.front.callbacks import Watching
from fedrecall.measure.watcher import Watcher
from fedrecall.recipe.names import titles
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs.folder import RunFolder
from fedrecall.simulation.experiment import Experiment
from fedrecall.simulation.loop import run_experiment
from fedrecall.simulation.progress import ProgressLine
from fedrecall.simulation.resume import resume_experiment
from fedrecall.user_code import note_key


@dataclass(frozen=True)
class Plan:
    """One run: what is run, where it is written, and what it is called while it goes."""

    experiment: Experiment
    folder: RunFolder
    title: str
    resume: bool = False  # go on with what is in the folder
    force: bool = False  # also with another recipe
    other_device: bool = False  # also on another device


def execute(
    plans: Sequence[Plan], *, report: Path | None, quiet: bool, callbacks: Sequence[Watcher] = ()
) -> list[dict[str, Any]]:
    """Carry out runs one after the other, then write the page about all of them; the runs' summaries."""
    summaries = []
    for plan in plans:
        with ProgressLine(plan.title, plan.experiment.recipe.rounds, quiet=quiet) as progress:
            observers = [Watching(watcher) for watcher in (progress, *plan.experiment.trackers, *callbacks)]
            if plan.resume:
                allowed = {"force": plan.force, "other_device": plan.other_device}
                summary = resume_experiment(plan.folder, plan.experiment, observers, **allowed)
            else:
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


def new_folder(out: str | Path | None, default: str) -> RunFolder:
    """Make the folder `out`, or a new one named `default` below `runs`."""
    return RunFolder.create_new(Path("runs"), default) if out is None else RunFolder.create(Path(out))


def write_report(runs: Sequence[str | Path], out: str | Path) -> Path:
    """Write the page about runs, or folders of runs, to `out`, and return where it is."""
    from fedrecall.report.page import write_report as write  # not for who only trains

    return write([Path(run) for run in runs], Path(out), titles())


def load_federation(recipe: Recipe) -> Federation:
    """The data and the partition that a recipe names."""
    check_execution(recipe.execution)  # before data are read, which may take long
    data = recipe.create("data", folder=recipe.execution.data)
    if not isinstance(data, DataSet):
        raise InputError(
            f"data is {recipe.data['name']!r}, which returned a {type(data).__name__}; expected a DataSet"
        )
    partition, name = recipe.create("partition"), recipe.partition["name"]
    try:
        federation = Federation.from_data(data, partition)
    except InputError:
        raise
    except Exception as error:
        if ":" in name:  # of the user's own, which deals the data only here
            note_key(error, "partition", name)
        raise
    federation.data = partial(recipe.create, "data", folder=None)  # where FEDRECALL_DATA is there
    return federation
