"""A sweep: execute or resume every run of a study, several at once, then write the tables and the report."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrecall.api.execute import write_report
from fedrecall.api.run import Run
from fedrecall.display import count_of
from fedrecall.engines.cpus import usable_cpus
from fedrecall.errors import InputError, Interrupted, Note
from fedrecall.recipe.display_titles import titles
from fedrecall.recipe.files import Tree
from fedrecall.report.comparison import group_methods
from fedrecall.report.text_table import csv_text
from fedrecall.runs import files
from fedrecall.runs.identity import hash_of
from fedrecall.runs.jsonl import read_lines
from fedrecall.runs.reader import is_run
from fedrecall.simulation.progress import wants_progress
from fedrecall.storage.atomic_files import write_text
from fedrecall.studies.cells import Cell, PlannedRun, RunSlot, cells_of, plan
from fedrecall.studies.design import Design, load_design
from fedrecall.studies.folder import OVER, State, StudyFolder
from fedrecall.studies.growth import Fit, arrange, fit_runs, refuse_other_study
from fedrecall.studies.objects import ObjectStudy, run_object_study
from fedrecall.studies.placement import Placement, in_one_process, refuse_workers
from fedrecall.studies.pool import RunPool, Seen
from fedrecall.studies.process_pool import ProcessPool
from fedrecall.studies.ray_pool import RayPool
from fedrecall.studies.reuse import reusable_runs, reuse_finished_runs
from fedrecall.studies.table import StudyTable, study_table
from fedrecall.studies.table_texts import study_csv, study_latex, study_markdown, study_text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedrecall.report.figures.options import Band

TIMES = "times.csv"
TEXTS: dict[str, Callable[[StudyTable], str]] = {
    "table.csv": study_csv,
    "table.md": study_markdown,
    "table.tex": study_latex,
}


class Study:
    """A study's folder: its runs, their states, and its table.

    `Study(path)` opens a folder that `sweep` has created.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.folder = StudyFolder(self.path)

    @cached_property
    def design(self) -> Design:
        """The design of the study."""
        return Design(**self.folder.saved())

    @cached_property
    def cells(self) -> list[Cell]:
        """The combinations of settings, and the runs of each."""
        return cells_of(self.design)

    @property
    def states(self) -> dict[RunSlot, State]:
        """The state of each run."""
        return {slot: self.folder.state(slot) for cell in self.cells for slot in cell.slots}

    @property
    def runs(self) -> dict[str, list[Run]]:
        """The runs that have begun, by cell."""
        return {
            cell.name: [Run(path) for path in map(self.folder.run, cell.slots) if is_run(path)] for cell in self.cells
        }

    def result(self) -> StudyTable:
        """Return the current table as numbers and notes."""
        return study_table(self.design, self.cells, self.folder)

    def table(self) -> Any:
        """Return the current table: a pandas DataFrame if pandas is installed, else a list of dictionaries."""
        records = self.result().records()
        try:
            import pandas
        except ImportError:
            return records
        return pandas.DataFrame(records)

    def write_tables(self) -> StudyTable:
        """Write `table.csv`, `.md` and `.tex`, which contain no times, and `times.csv`; return the table."""
        table = self.result()
        for name, text in TEXTS.items():
            write_text(self.path / name, text(table))
        write_text(self.path / TIMES, self._times())
        return table

    def report(self) -> Path | None:
        """Write the report on the runs of the table and return its path; None if no run has a result."""
        runs = [run.path for row in self.result().rows for run in row.runs]
        return write_report(runs, self.path / files.REPORT) if runs else None

    def plot(
        self,
        *metrics: str,
        methods: Sequence[str] = (),
        band: Band = "deviation",
        size: str | None = None,
        font_size: float = 9.0,
    ) -> Figure:
        """Return a matplotlib figure of metrics over the rounds, by default of the accuracy, a line for each method.

        `methods` are labels or parts of them; `band` is deviation, interval, range or none; `size` is in inches, as
        "3.5x2.4", or "column" or "page".
        """
        from fedrecall.report.figures.options import FigureOptions  # matplotlib takes a second to import
        from fedrecall.report.figures.write import plot

        runs = [run for row in self.result().rows for run in row.runs]
        options = FigureOptions(methods, band, size, font_size)
        return plot(group_methods(runs, titles()), metrics, options)

    def _times(self) -> str:
        """Return the seconds of each run's rounds as CSV."""
        rows: list[list[object]] = [["cell", "seed", "rounds", "seconds"]]
        for slot, state in self.states.items():
            spent = read_lines(self.folder.run(slot) / files.TIMINGS) if state.kind in OVER else []
            rows.append([slot.cell, slot.seed, len(spent), f"{sum(line['seconds'] for line in spent):.3f}"])
        return csv_text(rows)

    def __repr__(self) -> str:
        kinds = [state.kind for state in self.states.values()]
        return f"Study({str(self.path)!r}: {kinds.count('finished')} of {count_of(len(kinds), 'run')} finished)"

    def _repr_html_(self) -> str:
        return study_text_table(self.result()).html(repr(self))


def sweep(
    recipe: str | None = None,
    grid: Mapping[str, Sequence[Any] | Mapping[str, Any]] | None = None,
    *,
    model: Any = None,
    federation: Any = None,
    cases: Sequence[Mapping[str, Any]] | None = None,
    seeds: int | Sequence[int] | None = None,
    baseline: Mapping[str, Any] | None = None,
    holm: bool | None = None,
    choose: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    same_partition: bool | None = None,
    execution: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
    report: bool = True,
) -> Study:
    """Run a recipe with every combination of the grid's values and every seed, or resume such a study.

    `recipe` is the name or file of a recipe or of a study, which the other arguments override. The same call
    resumes the study and keeps finished runs. `jobs` runs are executed at once, by default one per CPU.
    `execution` applies to every run; with the engine `ray`, runs are spread over a cluster.

    Without `recipe`, the study is one of Python objects: `model` and `federation` as `federate` takes them, and a
    grid with the choices of a key by name, as in {"objective": {"plain": "cross_entropy", "mine": my_loss}}. Models,
    federations, algorithms and optimisers may be choices too. A federation may be a function of the seed. These
    runs are carried out one after the other, and `out` names the folder to resume. See docs/sweeps.md.
    """
    given = {
        "cases": cases and [dict(case) for case in cases],
        "seeds": list(seeds) if isinstance(seeds, Sequence) else seeds,
        "baseline": baseline and dict(baseline),
        "holm": holm,
        "choose": choose and list(choose),
        "same_partition": same_partition,
    }
    quiet, over = not wants_progress(progress), dict(execution or {})
    if recipe is None:
        if jobs not in (None, 1):
            raise InputError(f"jobs is {jobs}, but runs of Python objects are carried out one after the other")
        objects = {"model": model, "federation": federation}
        asked = ObjectStudy.of(grid or {}, objects, settings or {}, over, out, **given)
        study = Study(run_object_study(asked, quiet=quiet))
        study.write_tables()
        if report:
            study.report()
        return study
    for key, value in (("model", model), ("federation", federation)):
        if value is not None:
            raise InputError(f"{key} is given, and so is the recipe {recipe!r}, which names its own; leave one of them")
    lists: dict[str, Sequence[Any]] = {}
    for key, values in (grid or {}).items():
        if isinstance(values, Mapping):
            raise InputError(f"{key} has named choices, which are for studies of Python objects; a list was expected")
        lists[key] = values
    design = load_design(str(recipe), grid=lists, settings=settings and dict(settings), **given)
    return run_study(PlannedStudy.of(str(recipe), design, out, jobs, over), quiet=quiet, report=report)


@dataclass(frozen=True)
class PlannedStudy:
    """A planned study with its folder's path; nothing is written yet."""

    design: Design
    runs: list[PlannedRun]
    path: Path
    jobs: int
    requested: Sequence[PlannedRun] = ()  # all runs of the design, of which `runs` may be a part
    spread: Placement | None = None  # None: runs are executed in processes of this machine

    @classmethod
    def of(
        cls,
        source: str,
        design: Design,
        out: str | Path | None = None,
        jobs: int | None = None,
        execution: Tree | None = None,
    ) -> PlannedStudy:
        """Plan a study, with a folder named after its runs. Errors in recipes are raised here."""
        if jobs is not None and jobs < 1:
            raise InputError(f"jobs is {jobs}; at least one was expected")
        cells = cells_of(design)
        here = min(jobs or usable_cpus(), len(cells) * len(design.seeds))
        # Parallel runs share the CPUs, so each gets one worker, which does not change the bits.
        one = {"workers": 1} if here > 1 else {}
        runs = plan(design, cells, {**one, **(execution or {})})
        name = f"{Path(source).stem}-sweep-{hash_of({'runs': sorted(run.key for run in runs)})[:8]}"
        path = Path(out) if out is not None else Path("runs") / name
        spread = Placement.of(runs)
        if spread is None:
            return cls(design, runs, path, here, runs)
        refuse_workers(execution or {})
        runs, room = [in_one_process(run) for run in runs], spread.room()
        return cls(design, runs, path, min(jobs or room, room, len(runs)), runs, spread)

    def pool(self, folder: StudyFolder, seen: Seen) -> RunPool[Any]:
        """Return the pool that executes the runs."""
        if self.spread is None:
            return ProcessPool(folder, self.jobs, seen)
        return RayPool(folder, self.jobs, seen, self.spread)

    def fit(self) -> Fit:
        """Return where the runs are in the folder; raise an `InputError` if it has another study."""
        folder = StudyFolder(self.path)
        fit = fit_runs(folder, self.requested)
        refuse_other_study(folder, self.design, self.requested, fit)
        return fit

    def states(self) -> dict[RunSlot, State]:
        """Return the state of each run, as it will be when those that sibling studies have finished are taken over."""
        folder, fit = StudyFolder(self.path), self.fit()
        states = {run.slot: fit.state(folder, run.slot) for run in self.runs}
        waiting = [run for run in self.runs if states[run.slot].kind == "waiting"]
        for run, path in reusable_runs(folder, waiting).items():
            states[run.slot] = State("finished", run.recipe.rounds, f"taken over from {path}")
        return states


def run_study(asked: PlannedStudy, *, quiet: bool, report: bool) -> Study:
    """Execute the runs that are not done, then write the tables and, if `report` is set, the report."""
    before = random.getstate()  # importing rich draws from the user's random state
    from fedrecall.studies.progress import Progress

    random.setstate(before)
    check_data(asked.runs)
    folder = StudyFolder.of(asked.path, asked.design)
    with folder.locked():
        arrange(folder, asked.fit())
        folder.save(asked.design)
        reused = reuse_finished_runs(folder, asked.runs)
        if reused and not quiet:
            words = f"{count_of(len(reused), 'run')} of other studies in {str(asked.path.parent)!r} taken over"
            warnings.warn(words, Note, stacklevel=2)
        states = asked.states()
        left = [run for run in asked.runs if states[run.slot].kind not in OVER]
        study = Study(asked.path)
        with Progress(asked.runs, states, asked.jobs, quiet=quiet) as progress:
            try:
                asked.pool(folder, progress.seen).execute(left, progress.tick)
            except KeyboardInterrupt:
                done = sum(state.kind in OVER for state in study.states.values())
                raise Interrupted(
                    f"stopped with {done} of {count_of(len(asked.runs), 'run')} done; the same command goes on"
                ) from None
        study.write_tables()
        if report:
            study.report()
    return study


def check_data(runs: Sequence[PlannedRun]) -> None:
    """Raise an `InputError` before any run starts if data are missing; check each data set once."""
    seen = set()
    for recipe in (run.recipe for run in runs):
        key = json.dumps(recipe.tree()["data"], sort_keys=True)
        if key not in seen:
            seen.add(key)
            recipe.create("data", folder=recipe.execution.data)
