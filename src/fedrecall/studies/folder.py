"""A study's folder: its design, the paths of its runs, and their states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from fedrecall.display import printable
from fedrecall.errors import InputError
from fedrecall.recipe.files import Tree
from fedrecall.runs import files
from fedrecall.runs.folder import ANOTHER_FOLDER, RunFolder, explain_folder_errors
from fedrecall.runs.reader import RunRecord, is_run, read_tree
from fedrecall.storage.atomic_files import explain_write_errors, write_text
from fedrecall.storage.safe_parsing import yaml_value
from fedrecall.studies.cells import RunSlot
from fedrecall.studies.design import Design

Kind = Literal["waiting", "begun", "finished", "diverged", "failed"]
OVER: tuple[Kind, ...] = ("finished", "diverged")  # not repeated, because they would end the same way


@dataclass(frozen=True)
class State:
    """The progress of a run: its kind, the rounds that are done, and the cause of a failure in words."""

    kind: Kind
    rounds: int = 0
    words: str = ""


class StudyFolder:
    """The folder with the runs of one study."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, path: Path, design: Design) -> StudyFolder:
        """Return the folder, new or with a study; raise an `InputError` if it has any other content."""
        with explain_folder_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            inside = [each.name for each in path.iterdir() if each.name != files.LOCK and each.name[0] != "."]
        folder = cls(path)
        if folder.has_study:
            return folder
        if inside:
            raise InputError(f"the folder {str(path)!r} is not empty and has no study; {ANOTHER_FOLDER}")
        folder.save(design)
        return folder

    @property
    def has_study(self) -> bool:
        return (self.path / files.STUDY).is_file()

    def save(self, design: Design) -> None:
        """Write the design, if it is not there already."""
        if not self.has_study or self.saved() != design.tree():
            write_text(self.path / files.STUDY, yaml.safe_dump(design.tree(), sort_keys=False, allow_unicode=True))

    def saved(self) -> Tree:
        """Return the design that was asked last."""
        tree = read_tree(self.path / files.STUDY, yaml_value)
        if tree is None:
            raise InputError(f"{str(self.path)!r} is not a study's folder: it has no {files.STUDY}")
        return tree

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process until the block or the process ends."""
        folder = RunFolder(self.path)
        folder.lock()
        try:
            yield
        finally:
            folder.close()

    def run(self, slot: RunSlot) -> Path:
        return self.path / slot.folder

    def log(self, slot: RunSlot) -> Path:
        """Return the path of the run's output."""
        return self.path / f"{slot.folder}.log"

    def failure(self, slot: RunSlot) -> Path:
        """Return the path of the file that gives the cause if the run failed."""
        return self.path / f"{slot.folder}.failed"

    def note_failure(self, slot: RunSlot, words: str) -> None:
        with explain_write_errors(self.failure(slot)):
            self.failure(slot).parent.mkdir(parents=True, exist_ok=True)
        write_text(self.failure(slot), words + "\n")

    def forget_failure(self, slot: RunSlot) -> None:
        self.failure(slot).unlink(missing_ok=True)

    def state(self, slot: RunSlot) -> State:
        """Return the state of the run, read from its files."""
        return self.state_at(self.run(slot))

    def state_at(self, path: Path) -> State:
        """Return the state of the run at this path of the folder."""
        record = RunRecord(path)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return State("failed", words=printable(Path(f"{path}.failed").read_text(encoding="utf-8").strip()))
        if not is_run(record.path):
            return State("waiting")
        try:
            summary = record.summary
            rounds = int(summary.get("rounds_done") or (len(record.metrics) and record.rounds_done))
        except InputError as error:
            return State("failed", words=str(error))
        if summary.get("status") == "diverged":
            return State("diverged", rounds, f"diverged in round {rounds + 1}")
        return State("finished" if record.finished else "begun", rounds)
