"""Compare methods with the first one: differences paired by seeds, and the cost to reach given accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall.errors import InputError
from fedrecall.recipe.display_titles import titles
from fedrecall.report.comparison import Method, blocks, group_methods
from fedrecall.report.tables import duration, mean_and_deviation
from fedrecall.report.text_table import TextTable
from fedrecall.runs import files
from fedrecall.runs.jsonl import read_lines
from fedrecall.runs.reader import RunRecord, find_runs, load_run
from fedrecall.simulation.summary import to_target
from fedrecall.studies.sweep import Study
from fedrecall.studies.table import Paired, mean_record, paired, paired_record
from fedrecall.studies.table_texts import paired_texts


@dataclass(frozen=True)
class CostToAccuracy:
    """Rounds, bytes and seconds to reach an accuracy, means over the runs that reach it."""

    accuracy: float
    runs: int
    reached: int
    rounds: float | None
    bytes: float | None
    seconds: float | None

    @classmethod
    def of(cls, method: Method, accuracy: float) -> CostToAccuracy:
        ways = [way for way in (cost_to_accuracy(run, accuracy) for run in method.runs) if way is not None]
        means = [
            float(np.mean(known)) if (known := [way[key] for way in ways if way[key] is not None]) else None
            for key in ("rounds", "bytes", "seconds")
        ]
        return cls(accuracy, len(method.runs), len(ways), *means)


def cost_to_accuracy(run: RunRecord, accuracy: float) -> dict[str, Any] | None:
    """Return the cost for one run to reach the accuracy, on validation data if it has any; None if it does not."""
    key = "val_accuracy" if len(run.curve("val_accuracy")[0]) else "test_accuracy"
    found = to_target([{**line, "val_accuracy": line.get(key)} for line in run.metrics], accuracy)
    last = found["rounds_to_target"]
    if last is None:
        return None
    times = [line["seconds"] for line in read_lines(run.path / files.TIMINGS) if line["round"] <= last]
    seconds = sum(times) if len(times) == last else None
    return {"rounds": last, "bytes": found["bytes_to_target"], "seconds": seconds}


@dataclass(frozen=True)
class MethodComparison:
    """A method compared with the first."""

    method: Method
    paired: Paired | None  # None for the first method and if no seed is shared
    ways: list[CostToAccuracy]

    def record(self) -> dict[str, Any]:
        return {
            "method": self.method.label,
            "seeds": len(self.method.runs),
            **mean_record("final_accuracy", self.method.values("final_accuracy")),
            **paired_record(self.paired),
            "pairs": len(self.paired.values) if self.paired else 0,
            "to_accuracy": [vars(way) for way in self.ways],
        }


@dataclass(frozen=True)
class Comparison:
    """Several methods compared with the first."""

    methods: list[MethodComparison]
    accuracies: Sequence[float]

    def records(self) -> list[dict[str, Any]]:
        return [method.record() for method in self.methods]

    def table(self) -> TextTable:
        return TextTable(self.heading(), self.body(), self.notes())

    def heading(self) -> list[str]:
        words = ["method", "seeds", "final accuracy, %", "difference, points", "95 % interval", "agree"]
        for accuracy in self.accuracies:
            words += [f"rounds to {100 * accuracy:g} %", "MB", "time"]
        return words

    def body(self) -> list[list[str]]:
        rows = []
        for place, each in enumerate(self.methods):
            row = [each.method.label, str(len(each.method.runs))]
            row.append(mean_and_deviation(each.method.values("final_accuracy")) or "-")
            row += paired_texts(each.paired, "baseline" if place == 0 else "-")
            for way in each.ways:
                row += cost_texts(way)
            rows.append(row)
        return rows

    def notes(self) -> list[str]:
        """Return the notes below the table, a sentence each."""
        first = self.methods[0].method
        found = [f"Differences are to {first.label}, over the seeds that both have."]
        if self.accuracies:
            found.append("An accuracy is reached by the validation data, or by the test data of a run without any.")
        if len(blocks([each.method for each in self.methods])) > 1:
            found.append("They differ in more than algorithm and objective.")
        open_ = [each.method.label for each in self.methods if not each.method.finished]
        if open_:
            found.append(f"Not finished, with numbers as they are so far: {', '.join(open_)}.")
        return found


def cost_texts(way: CostToAccuracy) -> list[str]:
    """Return rounds, megabytes and time as texts, with the number of runs that reached it if not all did."""
    if way.rounds is None:
        return ["never", "-", "-"]
    some = f" ({way.reached} of {way.runs})" if way.reached < way.runs else ""
    megabytes = "-" if way.bytes is None else f"{way.bytes / 1e6:,.1f}"
    rounds = f"{way.rounds:,.1f}".removesuffix(".0")
    return [f"{rounds}{some}", megabytes, "-" if way.seconds is None else duration(way.seconds)]


def compare(paths: Sequence[str | Path], accuracies: Sequence[float] = ()) -> Comparison:
    """Compare the methods of runs, folders of runs and studies, each with the first of them."""
    for accuracy in accuracies:
        if not 0 < accuracy <= 1:
            raise InputError(f"--accuracy is {accuracy}; a number above 0 and at most 1 was expected")
    methods = group_methods(records_of([Path(path) for path in paths]), titles())
    if len(methods) < 2:
        raise InputError(f"all runs are of one method, {methods[0].label}: there is nothing to compare it with")
    first, *_ = methods
    return Comparison(
        [
            MethodComparison(
                method,
                None if method is first else paired(method, first),
                [CostToAccuracy.of(method, accuracy) for accuracy in accuracies],
            )
            for method in methods
        ],
        accuracies,
    )


def records_of(paths: Sequence[Path]) -> list[RunRecord]:
    """Return each run once; a study gives the finished runs of its table, in their order."""
    found: dict[Path, RunRecord] = {}
    for path in paths:
        study = (path / files.STUDY).is_file()
        runs = [run.path for row in Study(path).result().rows for run in row.runs] if study else find_runs([path])
        if not runs:
            raise InputError(f"the study {str(path)!r} has no finished run yet")
        for run in runs:
            found.setdefault(run.resolve(), load_run(run))
    return list(found.values())
