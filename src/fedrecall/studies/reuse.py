"""Reuse runs that a sibling study has already finished."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from fedrecall.errors import InputError
from fedrecall.runs import files
from fedrecall.runs.identity import hash_of, identity
from fedrecall.runs.reader import RunRecord
from fedrecall.studies.cells import PlannedRun
from fedrecall.studies.folder import StudyFolder
from fedrecall.studies.packed_folder import replaced_folder

HEAVY = shutil.ignore_patterns(files.CHECKPOINTS, files.STATES, files.MODEL, files.LOCK, files.REPORT)


def reuse_finished_runs(folder: StudyFolder, runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Copy the records of waiting runs that a sibling study has finished; return these runs."""
    found = reusable_runs(folder, [run for run in runs if folder.state(run.slot).kind == "waiting"])
    for run, path in found.items():
        copy_records(path, folder.run(run.slot))
    return list(found)


def reusable_runs(folder: StudyFolder, runs: Iterable[PlannedRun]) -> dict[PlannedRun, Path]:
    """Return the runs that a sibling study has finished, and where; no runs with code, which may have changed."""
    wanted: dict[str, list[PlannedRun]] = {}
    for run in runs:
        if not run.has_own_code:
            wanted.setdefault(run.key, []).append(run)
    if not wanted:
        return {}
    found = {}
    for path, identity_there in finished_beside(folder.path):
        for run in wanted.pop(hash_of(identity_there), ()):
            found[run] = path
    return found


def finished_beside(study: Path) -> Iterable[tuple[Path, dict[str, object]]]:
    """Yield the finished runs of the other studies in the same folder, each with its identity."""
    for summary in sorted(study.parent.glob(f"*/{files.RUNS}/*/*/{files.SUMMARY}")):
        run = RunRecord(summary.parent)
        try:
            if run.finished and not summary.is_relative_to(study):
                yield run.path, identity(run.recipe)
        except InputError:  # a damaged run cannot be reused
            continue


def copy_records(run: Path, place: Path) -> None:
    """Copy the records that tables and figures are made from."""
    with replaced_folder(place) as beside:
        shutil.copytree(run, beside, ignore=HEAVY, dirs_exist_ok=True)
