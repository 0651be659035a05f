"""A run's folder as the report reads it: finished, stopped or still going, of this version or an older one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from fedrecall.errors import InputError
from fedrecall.safe_parsing import arrays, json_value, yaml_value
from fedrecall.runs.folder import read_lines
from fedrecall.runs import schema as shapes

Tree = dict[str, Any]


@dataclass
class RunData:
    """What a run left behind. Files that an older or an unfinished run lacks are empty here."""

    path: Path
    recipe: Tree
    metrics: list[Tree]
    summary: Tree
    card: Tree = field(default_factory=dict)
    environment: Tree = field(default_factory=dict)
    events: list[Tree] = field(default_factory=list)
    clients: list[Tree] = field(default_factory=list)
    class_counts: np.ndarray | None = None  # [clients, classes], of the training samples

    @property
    def finished(self) -> bool:
        return self.summary.get("status") == "finished"

    @property
    def rounds_done(self) -> int:
        return int(self.metrics[-1]["round"])

    @property
    def seeds(self) -> tuple[Any, Any]:
        """The seeds of the run and of its partition: what may differ between runs of one method."""
        return self.recipe.get("seed"), self.recipe.get("partition", {}).get("seed")

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

    @cached_property
    def probes(self) -> dict[int, dict[str, np.ndarray]]:
        """The arrays of each probed round; `data` names the columns, in older files all clients in turn."""
        found = {}
        for path in sorted((self.path / "forgetting").glob("round-*.npz")):
            try:
                probe, number = arrays(path), int(path.stem.removeprefix("round-"))
                probe.setdefault("data", np.arange(probe["before"].size))
                shapes.check_probe(probe)
            except (ValueError, KeyError) as error:
                reason = str(error) if isinstance(error, InputError) else "it is not one of a probed round"
                raise InputError(
                    f"the file {str(path)!r} is damaged ({reason}); delete it to report without it"
                ) from None
            found[number] = probe
        return dict(sorted(found.items()))


def is_number(value: Any) -> TypeGuard[float]:
    return shapes.number(value)


def find_runs(paths: list[Path]) -> list[Path]:
    """The runs among the paths, each once; a folder that is no run stands for the runs directly in it."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise InputError(f"there is no run's folder {str(path)!r}")
        inside = (
            [path] if (path / "recipe.yaml").is_file() else sorted(p.parent for p in path.glob("*/recipe.yaml"))
        )
        if not inside:
            raise InputError(f"the folder {str(path)!r} is no run and has none in it: recipe.yaml is missing")
        for run in inside:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def load(path: Path) -> RunData:
    """Read a run's folder."""
    recipe = _read(path / "recipe.yaml", yaml_value)
    if recipe is None:
        raise InputError(f"{str(path)!r} is not a run: recipe.yaml is missing")
    _check_recipe(path, recipe)
    summary = _read(path / "summary.json", json_value, shapes.SUMMARY) or {}
    metrics = _rounds(path / "metrics.jsonl", whole=bool(summary))
    if not metrics:
        raise InputError(f"the run {str(path)!r} has no finished round yet: there is nothing to report")
    return RunData(
        path=path,
        recipe=recipe,
        metrics=metrics,
        summary=summary,
        card=_read(path / "partition.json", json_value, shapes.CARD) or {},
        environment=_read(path / "environment.json", json_value) or {},
        events=[line for line in _lines(path / "events.jsonl", whole=bool(summary)) if isinstance(line, dict)],
        clients=_clients(path / "clients.jsonl", whole=bool(summary)),
        class_counts=_class_counts(path / "partition.npz"),
    )


def _read(path: Path, parse: Any, expected: Mapping[str, shapes.Test] | None = None) -> Tree | None:
    """A file that holds keys and values; None if there is none."""
    try:
        tree = parse(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"the file {str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        reason = str(error) if isinstance(error, InputError) else "it is not text"
        raise InputError(f"the file {str(path)!r} is damaged: {reason}") from None
    if not isinstance(tree, dict):
        raise InputError(f"the file {str(path)!r} is damaged: it does not hold keys and values")
    shapes.check(path, tree, expected or {})
    return tree


def _check_recipe(path: Path, recipe: Tree) -> None:
    for section in ("algorithm", "objective", "data", "partition", "model"):
        if not isinstance(recipe.get(section), dict) or not isinstance(recipe[section].get("name"), str):
            raise InputError(f"the recipe of {str(path)!r} is not that of a run: it has no {section}.name")
    shapes.check_recipe(path / "recipe.yaml", recipe)


def _lines(path: Path, *, whole: bool) -> list[Any]:
    """The lines of a file. Where the run goes on, or was killed, the last may be half written and is left out."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError):
        raise InputError(f"the file {str(path)!r} is damaged: it is not text") from None
    if text.endswith("\n") or not text or whole:
        return read_lines(path)
    found = []
    for number, line in enumerate(text.splitlines()[:-1], start=1):
        try:
            found.append(json_value(line))
        except ValueError:
            raise InputError(f"line {number} of {str(path)!r} is not JSON") from None
    return found


def _rounds(path: Path, *, whole: bool) -> list[Tree]:
    lines = _lines(path, whole=whole)
    for number, line in enumerate(lines, start=1):
        if not isinstance(line, dict) or not shapes.whole(line.get("round")):
            raise InputError(f"line {number} of {str(path)!r} is not that of a round: it has no number 'round'")
    return lines


def _clients(path: Path, *, whole: bool) -> list[Tree]:
    lines = _lines(path, whole=whole)
    for number, line in enumerate(lines, start=1):
        ids, values = (line.get(k) if isinstance(line, dict) else None for k in ("client", "val_accuracy"))
        if not isinstance(ids, list) or not isinstance(values, list) or not all(map(shapes.whole, ids)):
            raise InputError(f"line {number} of {str(path)!r} is not one of clients and their accuracies")
    return lines


def _class_counts(path: Path) -> np.ndarray | None:
    try:
        counts = arrays(path).get("class_counts") if path.exists() else None
        if counts is not None:
            shapes.check_counts(counts)
    except InputError as error:
        raise InputError(f"the file {str(path)!r} is damaged: {error}") from None
    return counts
