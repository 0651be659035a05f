"""Read the folder of a run: finished, stopped or still running, of this version or an older one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from fedrecall.errors import InputError, Note
from fedrecall.runs import checkpoint, files, schema
from fedrecall.runs.identity import lengthened, round_identity
from fedrecall.runs.jsonl import read_lines
from fedrecall.runs.records import SUMMARY_DIGEST, changed_since, without_digest
from fedrecall.storage.safe_parsing import arrays, is_text, json_value, reason_of, regular_file, yaml_value

Tree = dict[str, Any]


class RunRecord:
    """The files of a run, each read and checked on first access.

    Files that an older or unfinished run lacks are empty; a damaged one raises an `InputError` that names it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def recipe(self) -> Tree:
        recipe = read_tree(self.path / files.RECIPE, yaml_value)
        if recipe is None:
            raise InputError(f"{str(self.path)!r} is not a run: {files.RECIPE} is missing")
        schema.check_recipe(f"the file {str(self.path / files.RECIPE)!r}", recipe)
        return recipe

    @cached_property
    def origin(self) -> Tree:
        """The provenance of the run, by section of the recipe; empty in older runs."""
        return without_nulls(read_tree(self.path / files.ORIGIN, json_value, schema.ORIGIN_KEYS) or {})

    @cached_property
    def summary(self) -> Tree:
        path = self.path / files.SUMMARY
        summary = read_tree(path, json_value, schema.SUMMARY_KEYS) or {}
        with damage_in(path):
            without_digest(summary, SUMMARY_DIGEST)
        return summary

    @cached_property
    def metrics(self) -> list[Tree]:
        return self._lines(files.METRICS, schema.RoundLine)

    @cached_property
    def card(self) -> Tree:
        return without_nulls(read_tree(self.path / files.CARD, json_value, schema.CARD_KEYS) or {})

    @cached_property
    def environment(self) -> Tree:
        return read_tree(self.path / files.ENVIRONMENT, json_value) or {}

    @cached_property
    def events(self) -> list[Tree]:
        return self._lines(files.EVENTS, schema.Recorded)

    @cached_property
    def clients(self) -> list[Tree]:
        """Metrics by client, a line for each evaluated round."""
        return self._lines(files.CLIENTS, schema.ClientsLine)

    @cached_property
    def class_counts(self) -> np.ndarray | None:
        """Training samples [clients, classes]."""
        path = self.path / files.PARTITION
        with damage_in(path):
            counts = arrays(path).get("class_counts") if path.exists() else None
            if counts is not None:
                schema.check_counts(counts)
        return counts

    @cached_property
    def probes(self) -> dict[int, dict[str, np.ndarray]]:
        """The arrays of each probed round; `data` has the clients of the columns, in older files all in order."""
        probes = {}
        for number, path in files.probe_files(self.path).items():
            with damage_in(path, "; delete it to report without it"):
                probe = arrays(path)
                if not {"models", "before", "after"} <= set(probe):
                    raise InputError("it is not one of a probed round")
                probe.setdefault("data", np.arange(probe["before"].size))
                schema.check_probe(probe)
            probes[number] = probe
        return probes

    @property
    def finished(self) -> bool:
        return self.summary.get("status") == "finished"

    @property
    def rounds_done(self) -> int:
        return int(self.metrics[-1]["round"])

    @property
    def seeds(self) -> tuple[Any, Any, Any]:
        """The seeds of the run and its partition and the digest of given weights, which may differ between runs of
        one method."""
        partition = self.recipe.get("partition", {}).get("seed", self.origin.get("partition", {}).get("seed"))
        return self.recipe.get("seed"), partition, self.origin.get("model", {}).get("weights")

    @property
    def diverged(self) -> int | None:
        """The first round whose training loss was not a number (JSON has null there)."""
        return next((line["round"] for line in self.metrics if line.get("train_loss", 0) is None), None)

    def curve(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the rounds at which a metric was measured, and its values."""
        points = [(line["round"], line[key]) for line in self.metrics if is_number(line.get(key))]
        rounds, values = zip(*points) if points else ((), ())
        return np.array(rounds, dtype=np.int64), np.array(values, dtype=np.float64)

    def mean(self, key: str) -> float | None:
        values = self.curve(key)[1]
        return float(values.mean()) if len(values) else None

    def _lines(self, name: str, kind: type[schema.Recorded]) -> list[Tree]:
        """Return the checked lines of a file; until the run has a summary, a partial last line is left out."""
        path = self.path / name
        lines = read_lines(path, unfinished=not (self.path / files.SUMMARY).exists())
        for number, line in enumerate(lines, start=1):
            schema.check(f"line {number} of {str(path)!r}", line, kind)
        return lines


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value from a file of the run is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_run(path: Path) -> bool:
    return (path / files.RECIPE).is_file()


def runs_in(path: Path) -> list[Path]:
    """Return the runs directly in a folder, or those of a study."""
    below = f"{files.RUNS}/*/*" if (path / files.STUDY).is_file() else "*"
    return sorted(inner.parent for inner in path.glob(f"{below}/{files.RECIPE}"))


def find_runs(paths: list[Path]) -> list[Path]:
    """Return the runs among the paths, each once; a folder of runs or a study stands for the runs in it."""
    runs: dict[Path, Path] = {}
    for path in paths:
        refuse_unwritable_name(path)
        if not path.is_dir():
            raise InputError(f"there is no run's folder {str(path)!r}")
        inside = [path] if is_run(path) else runs_in(path)
        if not inside:
            raise InputError(f"the folder {str(path)!r} is no run and has none in it: {files.RECIPE} is missing")
        for run in inside:
            runs.setdefault(run.resolve(), run)
    return list(runs.values())


def refuse_unwritable_name(path: Path) -> None:
    """Raise an `InputError` for a folder whose name is not UTF-8 and cannot be written to a file."""
    if not is_text(str(path)):
        raise InputError(f"the name of the folder {str(path)!r} is not text in UTF-8; it needs another")


def load_run(path: Path) -> RunRecord:
    """Return a run with all its files read, so that damage is found at once."""
    run = RunRecord(path)
    _ = run.recipe, run.summary, run.origin
    if not run.metrics:
        raise InputError(f"the run {str(path)!r} has no finished round yet: there is nothing to report")
    _ = run.card, run.environment, run.events, run.clients, run.class_counts
    refuse_changed(run)
    return run


def refuse_changed(run: RunRecord) -> None:
    """Raise an `InputError` for files that differ from the newest checkpoint's note; warn about missing ones."""
    note = checkpoint.newest_note(run.path / files.CHECKPOINTS)
    if note is None:
        return
    began = lengthened(note["recipe"], run.recipe.get("rounds") or 0)
    if round_identity(began) != round_identity(run.recipe):
        raise InputError(f"{str(run.path / files.RECIPE)!r} is not the recipe of the run; put it back from a copy")
    for name in changed_since(run.path, note.get("records", {})):
        path = run.path / name
        if path.exists() or path.is_symlink():
            _ = run.probes  # raises a more specific error for one
            advice = "" if name == files.METRICS else ", or delete it to go on without it"
            raise InputError(
                f"{str(path)!r} is not as it was after round {note['round']}; put it back from a copy{advice}"
            )
        warnings.warn(f"{str(path)!r} is missing; the rest is shown without it", Note, stacklevel=2)


def without_nulls(tree: Tree) -> Tree:
    """Return the tree without nulls, which count as missing."""
    return {
        key: without_nulls(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }


def has_partition(path: Path) -> bool:
    """Whether the run has a readable card and partition."""
    try:
        run = RunRecord(path)
        return bool(run.card) and run.class_counts is not None
    except InputError:
        return False


def finished_summary(path: Path) -> Tree | None:
    """Return the summary of a finished run; None if the run is not finished or cannot be read."""
    try:
        run = RunRecord(path)
        return run.summary if run.finished else None
    except InputError:
        return None


def read_tree(path: Path, parse: Callable[[str], Any], kind: type[schema.Recorded] = schema.Recorded) -> Tree | None:
    """Return the keys and values of a file; None if there is no such file."""
    try:
        with damage_in(path):
            tree: Tree = parse(regular_file(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"the file {str(path)!r} cannot be read: {error.strerror}") from None
    schema.check(f"the file {str(path)!r}", tree, kind)
    return tree


@contextmanager
def damage_in(path: Path, advice: str = "") -> Iterator[None]:
    """Convert errors about a file's content into an `InputError` that names the file."""
    try:
        yield
    except ValueError as error:
        raise InputError(f"the file {str(path)!r} is damaged: {reason_of(error)}{advice}") from None
