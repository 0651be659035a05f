"""Reuse runs that a sibling study has already finished."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from fedrecall.errors import InputError
from fedrecall.runs import files
from fedrecall.runs.identity import identity
from fedrecall.runs.reader import RunRecord
from fedrecall.studies.cells import PlannedRun
from fedrecall.studies.folder import StudyFolder
from fedrecall.studies.packed_folder import replaced_folder

HEAVY = shutil.ignore_patterns(files.CHECKPOINTS, files.STATES, files.MODEL, files.LOCK, files.REPORT)


def reuse_finished_runs(folder: StudyFolder, runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Copy the records of waiting runs that a sibling study has finished; return these runs."""
    waiting = {run: identity(run.recipe.tree()) for run in runs if folder.state(run.slot).kind == "waiting"}
    if not waiting:
        return []
    adopted = []
    for path, found in finished_beside(folder.path):
        for run in [run for run, wanted in waiting.items() if wanted == found]:
            copy_records(path, folder.run(run.slot))
            adopted.append(run)
            del waiting[run]
    return adopted


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
