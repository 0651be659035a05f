"""A run's folder as everybody reads it: finished, stopped or still going, of this version or an older one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from fedrecall.errors import InputError, Note
from fedrecall.runs import checkpoint, files, schema
from fedrecall.runs.identity import lengthened, round_identity
from fedrecall.runs.lines import read_lines
from fedrecall.runs.records import OWN_DIGEST, changed_since, tree_digest
from fedrecall.safe_parsing import arrays, is_text, json_value, reason_of, regular_file, yaml_value

Tree = dict[str, Any]


class RunRecord:
    """What a run left behind, each file read when it is first asked for and checked as it is read.

    Files that an older or an unfinished run lacks are empty here; a damaged one is an `InputError` that names it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def recipe(self) -> Tree:
        recipe = read_tree(self.path / files.RECIPE, yaml_value)
        if recipe is None:
            raise InputError(f"{str(self.path)!r} is not a run: {files.RECIPE} is missing")
        for section in ("algorithm", "objective", "data", "partition", "model"):
            if not isinstance(recipe.get(section), dict) or not isinstance(recipe[section].get("name"), str):
                raise InputError(
                    f"the recipe of {str(self.path)!r} is not that of a run: it has no {section}.name"
                )
        schema.check_recipe(self.path / files.RECIPE, recipe)
        return recipe

    @cached_property
    def origin(self) -> Tree:
        """What the run was made of, by section of the recipe; nothing in runs of before that was written."""
        return read_tree(self.path / files.ORIGIN, json_value, schema.ORIGIN) or {}

    @cached_property
    def summary(self) -> Tree:
        path = self.path / files.SUMMARY
        summary = read_tree(path, json_value, schema.SUMMARY) or {}
        told = {key: value for key, value in summary.items() if key != OWN_DIGEST}
        if summary.get(OWN_DIGEST) not in (None, tree_digest(told)):
            raise InputError(f"the file {str(path)!r} is damaged: it is not as it was written")
        return summary

    @cached_property
    def metrics(self) -> list[Tree]:
        """A line a round."""
        path = self.path / files.METRICS
        lines = self._lines(path)
        for number, line in enumerate(lines, start=1):
            if not isinstance(line, dict) or not schema.whole(line.get("round")):
                raise InputError(
                    f"line {number} of {str(path)!r} is not that of a round: it has no number 'round'"
                )
        return lines

    @cached_property
    def card(self) -> Tree:
        """Of the partition."""
        return without_nulls(read_tree(self.path / files.CARD, json_value, schema.CARD) or {})

    @cached_property
    def environment(self) -> Tree:
        return read_tree(self.path / files.ENVIRONMENT, json_value) or {}

    @cached_property
    def events(self) -> list[Tree]:
        return [line for line in self._lines(self.path / files.EVENTS) if isinstance(line, dict)]

    @cached_property
    def clients(self) -> list[Tree]:
        """Metrics by client, a line an evaluated round."""
        path = self.path / files.CLIENTS
        lines = self._lines(path)
        for number, line in enumerate(lines, start=1):
            ids, values = (line.get(k) if isinstance(line, dict) else None for k in ("client", "val_accuracy"))
            if not isinstance(ids, list) or not isinstance(values, list) or not all(map(schema.whole, ids)):
                raise InputError(f"line {number} of {str(path)!r} is not one of clients and their accuracies")
        return lines

    @cached_property
    def class_counts(self) -> np.ndarray | None:
        """[clients, classes], of the training samples."""
        path = self.path / files.PARTITION
        try:
            counts = arrays(path).get("class_counts") if path.exists() else None
            if counts is not None:
                schema.check_counts(counts)
        except InputError as error:
            raise InputError(f"the file {str(path)!r} is damaged: {error}") from None
        return counts

    @cached_property
    def probes(self) -> dict[int, dict[str, np.ndarray]]:
        """The arrays of each probed round; `data` names the columns, in older files all clients in turn."""
        found = {}
        for number, path in files.probe_files(self.path).items():
            try:
                probe = arrays(path)
                probe.setdefault("data", np.arange(probe["before"].size))
                schema.check_probe(probe)
            except (ValueError, KeyError) as error:
                reason = str(error) if isinstance(error, InputError) else "it is not one of a probed round"
                raise InputError(
                    f"the file {str(path)!r} is damaged ({reason}); delete it to report without it"
                ) from None
            found[number] = probe
        return found

    @property
    def finished(self) -> bool:
        return self.summary.get("status") == "finished"

    @property
    def rounds_done(self) -> int:
        return int(self.metrics[-1]["round"])

    @property
    def seeds(self) -> tuple[Any, Any, Any]:
        """The seeds of the run and of its partition, and the weights that it was given: what may differ between
        runs of one method."""
        partition = self.recipe.get("partition", {}).get("seed", self.origin.get("partition", {}).get("seed"))
        return self.recipe.get("seed"), partition, self.origin.get("model", {}).get("weights")

    @property
    def diverged(self) -> int | None:
        """The first round whose training loss was not a number (JSON has null there)."""
        return next((line["round"] for line in self.metrics if line.get("train_loss", 0) is None), None)

    def curve(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """The rounds at which a metric was measured, and its values."""
        points = [(line["round"], line[key]) for line in self.metrics if is_number(line.get(key))]
        rounds, values = zip(*points) if points else ((), ())
        return np.array(rounds, dtype=np.int64), np.array(values, dtype=np.float64)

    def mean(self, key: str) -> float | None:
        values = self.curve(key)[1]
        return float(values.mean()) if len(values) else None

    def _lines(self, path: Path) -> list[Any]:
        """The lines of a file. Where the run goes on, or was killed, the last may be half written and is left
        out."""
        try:
            text = regular_file(path).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ValueError) as error:
            raise InputError(f"the file {str(path)!r} is damaged: {reason_of(error)}") from None
        if text.endswith("\n") or not text or self.summary:
            return read_lines(path)
        found = []
        for number, line in enumerate(text.splitlines()[:-1], start=1):
            try:
                found.append(json_value(line))
            except ValueError:
                raise InputError(f"line {number} of {str(path)!r} is not JSON") from None
        return found


def is_number(value: Any) -> TypeGuard[float]:
    return schema.number(value)


def is_run(path: Path) -> bool:
    """Does the folder hold a run?"""
    return (path / files.RECIPE).is_file()


def runs_in(path: Path) -> list[Path]:
    """The runs directly in a folder, or those of a study."""
    below = f"{files.RUNS}/*/*" if (path / files.STUDY).is_file() else "*"
    return sorted(inner.parent for inner in path.glob(f"{below}/{files.RECIPE}"))


def find_runs(paths: list[Path]) -> list[Path]:
    """The runs among the paths, each once; a folder that is no run stands for the runs in it, directly or
    as a study."""
    found: dict[Path, Path] = {}
    for path in paths:
        refuse_unwritable_name(path)
        if not path.is_dir():
            raise InputError(f"there is no run's folder {str(path)!r}")
        inside = [path] if is_run(path) else runs_in(path)
        if not inside:
            raise InputError(f"the folder {str(path)!r} is no run and has none in it: {files.RECIPE} is missing")
        for run in inside:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def refuse_unwritable_name(path: Path) -> None:
    """An `InputError` for a folder that cannot be named in a run's files or on a page."""
    if not is_text(str(path)):
        raise InputError(f"the name of the folder {str(path)!r} is not text in UTF-8; it needs another")


def load(path: Path) -> RunRecord:
    """Read all of a run's folder at once, so that what is damaged is found before anything is made of it."""
    run = RunRecord(path)
    _ = run.recipe, run.summary, run.origin
    if not run.metrics:
        raise InputError(f"the run {str(path)!r} has no finished round yet: there is nothing to report")
    _ = run.card, run.environment, run.events, run.clients, run.class_counts
    refuse_changed(run)
    return run


def refuse_changed(run: RunRecord) -> None:
    """What is not as the newest checkpoint noted it would make other numbers; what was deleted is said."""
    note = checkpoint.newest_note(run.path / files.CHECKPOINTS)
    if note is None:
        return
    began = lengthened(note["recipe"], run.recipe.get("rounds") or 0)
    if round_identity(began) != round_identity(run.recipe):
        raise InputError(f"{str(run.path / files.RECIPE)!r} is not the recipe of the run; put it back from a copy")
    for name in changed_since(run.path, note.get("records", {})):
        path = run.path / name
        if path.exists() or path.is_symlink():
            _ = run.probes  # which says more of what is wrong with one
            advice = "" if name == files.METRICS else ", or delete it to go on without it"
            raise InputError(
                f"{str(path)!r} is not as it was after round {note['round']}; put it back from a copy{advice}"
            )
        warnings.warn(f"{str(path)!r} is missing; the rest is shown without it", Note, stacklevel=2)


def without_nulls(tree: Tree) -> Tree:
    """What is null counts as not there."""
    return {
        key: without_nulls(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }


def has_partition(path: Path) -> bool:
    """Does the run say who has what, in files that can be read?"""
    try:
        run = RunRecord(path)
        return bool(run.card) and run.class_counts is not None
    except InputError:
        return False


def finished_summary(path: Path) -> Tree | None:
    """The summary of a run that came to its end; None of any other, and of one that cannot be read."""
    try:
        run = RunRecord(path)
        return run.summary if run.finished else None
    except InputError:
        return None


def read_tree(
    path: Path, parse: Callable[[str], Any], expected: Mapping[str, schema.Test] | None = None
) -> Tree | None:
    """A file that holds keys and values; None if there is none."""
    try:
        tree = parse(regular_file(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"the file {str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"the file {str(path)!r} is damaged: {reason_of(error)}") from None
    if not isinstance(tree, dict):
        raise InputError(f"the file {str(path)!r} is damaged: it does not hold keys and values")
    schema.check(path, tree, expected or {})
    return tree
