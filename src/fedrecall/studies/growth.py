"""Fit a study's folder to a request: runs are recognised by their recipes, whatever their cells are called.

A study grows if the request has all of its runs and more, and is looked at in part if the request has fewer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrecall.errors import InputError
from fedrecall.recipe.code_keys import names_code
from fedrecall.runs import files, ledger
from fedrecall.runs.folder import RunFolder
from fedrecall.runs.identity import hash_of, identity
from fedrecall.runs.reader import RunRecord
from fedrecall.simulation.resume import changed_keys
from fedrecall.storage.atomic_files import explain_write_errors
from fedrecall.studies.cells import PlannedRun, RunSlot, cells_of, plan
from fedrecall.studies.design import Design, asked
from fedrecall.studies.folder import State, StudyFolder

ASIDE = "aside"  # the cell of runs whose place another run needs, and which the request does not have


@dataclass(frozen=True)
class Fit:
    """The runs in a study's folder, as a request sees them."""

    places: dict[RunSlot, Path]  # where each requested run is now
    others: list[Path]  # runs that are not requested

    def state(self, folder: StudyFolder, slot: RunSlot) -> State:
        """Return the state of a requested run, wherever it is."""
        place = self.places.get(slot, folder.run(slot))
        return State("waiting") if place in self.others else folder.state_at(place)


def fit_runs(folder: StudyFolder, requested: Iterable[PlannedRun]) -> Fit:
    """Find each requested run in the folder by its recipe, first in its own place."""
    left = {path: hash_of(identity(RunRecord(path).recipe)) for path in runs_of(folder)}
    places: dict[RunSlot, Path] = {}
    elsewhere = []
    for run in requested:
        place = folder.run(run.slot)
        if left.get(place) == run.key:
            places[run.slot] = place
            del left[place]
        else:
            elsewhere.append(run)
    by_key: dict[str, list[Path]] = {}
    for path, key in left.items():
        by_key.setdefault(key, []).append(path)
    for run in elsewhere:
        if known := by_key.get(run.key):
            places[run.slot] = known.pop(0)
    return Fit(places, [path for paths in by_key.values() for path in paths])


def runs_of(folder: StudyFolder) -> list[Path]:
    """Return the runs in the study's folder, requested or not."""
    return sorted(path.parent for path in folder.path.glob(f"{files.RUNS}/*/*/{files.RECIPE}"))


def refuse_other_study(folder: StudyFolder, design: Design, requested: Sequence[PlannedRun], fit: Fit) -> None:
    """Raise an `InputError` if the request drops runs of the study and adds others."""
    if not fit.others or not folder.has_study:
        return
    new = [run for run in requested if run.slot not in fit.places]
    theirs = {hash_of(identity(RunRecord(path).recipe)) for path in fit.others}
    # Part of a study, of which some has not run yet; not one whose recipe's file has changed since.
    if not new or {*theirs, *(run.key for run in new)} <= keys_of(folder.saved()):
        return
    changed = list(changed_keys(asked(folder.saved()), asked(design.tree())))
    if changed:
        raise InputError(
            f"the folder {str(folder.path)!r} has another study: {'; '.join(changed)}; choose another with --out"
        )
    there = {folder.run(run.slot): run for run in new}
    path = next((path for path in fit.others if path in there), fit.others[0])
    changed = list(changed_keys(identity(RunRecord(path).recipe), identity(there.get(path, new[0]).recipe.tree())))
    raise InputError(
        f"the run in {str(path)!r} is of another recipe: {'; '.join(changed)}; choose another folder with --out"
    )


def keys_of(saved: dict[str, object]) -> set[str]:
    """Return the keys of all runs of a saved design; an empty set if its recipes cannot be read any more."""
    try:
        design = Design(**saved)  # type: ignore[arg-type]
        return {run.key for run in plan(design, cells_of(design))}
    except InputError:
        return set()


def arrange(folder: StudyFolder, fit: Fit) -> None:
    """Move every requested run to its own place; a run in the way that is not requested is put aside.

    After a kill in between, all runs are still in the folder and are found again.
    """
    moves = {folder.run(slot): path for slot, path in fit.places.items() if path != folder.run(slot)}
    for path in {*moves.values(), *(place for place in moves if place.exists())}:
        refuse_running(path)
    for place in moves:
        if place.exists():
            parked = free_name(folder.path / files.RUNS / ASIDE / place.name)
            move_run(place, parked)
            moves = {target: parked if path == place else path for target, path in moves.items()}
    for place, path in moves.items():
        move_run(path, place)


def refuse_running(path: Path) -> None:
    """Raise an `InputError` if another process is carrying out the run."""
    run = RunFolder(path)
    run.lock()
    run.close()


def free_name(path: Path) -> Path:
    """Return the path, with a number at its end if there is something already."""
    number = 1
    found = path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def move_run(path: Path, place: Path) -> None:
    """Move a run, its log and the note of its failure; a run with own code stays known as made here."""
    code = names_code(RunRecord(path).recipe) if (path / files.RECIPE).is_file() else {}
    known = code and ledger.unknown_reason(path, code) is None
    with explain_write_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        for end in (".log", ".failed"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{path}{end}", f"{place}{end}")
        path.rename(place)
        with contextlib.suppress(OSError):  # it has other runs
            path.parent.rmdir()
    if known:
        ledger.record(place, code)
