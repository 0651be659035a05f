"""Compare methods with the first or a baseline: differences paired by seeds, and the cost to reach given accuracies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall.errors import InputError
from fedrecall.recipe.display_titles import titles
from fedrecall.recipe.layers import look_up
from fedrecall.report.comparison import Method, blocks, competitors, flatten, group_methods, key_of
from fedrecall.report.tables import duration, mean_and_deviation
from fedrecall.report.text_table import TextTable
from fedrecall.report.wording import rounded_share, value_text
from fedrecall.runs import files
from fedrecall.runs.identity import identity
from fedrecall.runs.jsonl import read_lines
from fedrecall.runs.reader import RunRecord, find_runs, load_run
from fedrecall.simulation.summary import to_target
from fedrecall.studies.sweep import Study
from fedrecall.studies.table import Paired, mean_record, paired, paired_record, with_holm
from fedrecall.studies.table_texts import paired_heading, paired_texts


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
    """A method compared with its baseline."""

    method: Method
    paired: Paired | None  # None for a baseline and if no seed is shared
    ways: list[CostToAccuracy]
    is_baseline: bool = False

    def record(self, *, corrected: bool = False) -> dict[str, Any]:
        return {
            "method": self.method.label,
            "seeds": len(self.method.runs),
            **mean_record("final_accuracy", self.method.values("final_accuracy")),
            **paired_record(self.paired, corrected=corrected),
            "pairs": len(self.paired.values) if self.paired else 0,
            "to_accuracy": [vars(way) for way in self.ways],
        }


@dataclass(frozen=True)
class Comparison:
    """Several methods compared with the first, or with those that the baseline names."""

    methods: list[MethodComparison]
    accuracies: Sequence[float]
    baseline: str = ""  # in words; empty for the first method
    corrected: bool = False  # p-values also by Holm's method

    def records(self) -> list[dict[str, Any]]:
        return [method.record(corrected=self.corrected) for method in self.methods]

    def table(self) -> TextTable:
        return TextTable(self.heading(), self.body(), self.notes(), bold=self.best_cells())

    def best_cells(self) -> frozenset[tuple[int, int]]:
        """Return the cells with the best final accuracy of each group of comparable methods."""
        found = set()
        for block in blocks([each.method for each in self.methods]):
            means = {id(m): rounded_share(m.mean("final_accuracy")) for m in competitors(block)}
            if len(set(means.values())) > 1:
                best = max(means.values())
                found |= {(at, 2) for at, each in enumerate(self.methods) if means.get(id(each.method)) == best}
        return frozenset(found)

    def heading(self) -> list[str]:
        words = ["method", "seeds", "final accuracy, %", *paired_heading(corrected=self.corrected)]
        for accuracy in self.accuracies:
            words += [f"rounds to {100 * accuracy:g} %", "MB", "time"]
        return words

    def body(self) -> list[list[str]]:
        rows = []
        for each in self.methods:
            row = [each.method.label, str(len(each.method.runs))]
            row.append(mean_and_deviation(each.method.values("final_accuracy")) or "-")
            row += paired_texts(each.paired, "baseline" if each.is_baseline else "-", corrected=self.corrected)
            for way in each.ways:
                row += cost_texts(way)
            rows.append(row)
        return rows

    def notes(self) -> list[str]:
        """Return the notes below the table, a sentence each."""
        first = self.methods[0].method
        found = [f"Differences are to {self.baseline or first.label}, over the seeds that both have."]
        if self.corrected:
            found.append("P-values are also corrected for all rows by Holm's method.")
        if self.best_cells():
            found.append("Bold: the best mean of methods that differ in algorithm and objective only.")
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


def compare(
    paths: Sequence[str | Path],
    accuracies: Sequence[float] = (),
    baseline: Mapping[str, Any] | None = None,
    *,
    holm: bool = False,
) -> Comparison:
    """Compare the methods of runs, folders of runs and studies with the first of them, or with `baseline`.

    If several methods have the settings of the baseline, each method is compared with the one that is equal otherwise.
    """
    for accuracy in accuracies:
        if not 0 < accuracy <= 1:
            raise InputError(f"--accuracy is {accuracy}; a number above 0 and at most 1 was expected")
    methods = group_methods(records_of([Path(path) for path in paths]), titles())
    if len(methods) < 2:
        raise InputError(f"all runs are of one method, {methods[0].label}: there is nothing to compare it with")
    bases = baselines_among(methods, baseline) if baseline else methods[:1]
    differences = [paired_with_base(method, bases, baseline or {}) for method in methods]
    compared = [
        MethodComparison(
            method,
            difference,
            [CostToAccuracy.of(method, accuracy) for accuracy in accuracies],
            any(method is base for base in bases),
        )
        for method, difference in zip(methods, with_holm(differences) if holm else differences)
    ]
    words = ", ".join(f"{key} {value_text(value)}" for key, value in (baseline or {}).items())
    return Comparison(compared, accuracies, words, holm)


def baselines_among(methods: Sequence[Method], baseline: Mapping[str, Any]) -> list[Method]:
    """Return the methods that have the settings of the baseline; raise an `InputError` if there is none."""
    found = [method for method in methods if all(setting(method, key) == value for key, value in baseline.items())]
    if not found:
        words = ", ".join(f"{key}={value}" for key, value in baseline.items())
        known = ", ".join(method.label for method in methods)
        raise InputError(f"the baseline is {words}, but no method has these settings; there are: {known}")
    return found


def setting(method: Method, key: str) -> Any:
    """Return a setting of a method's recipe; for a section, its name."""
    value = look_up(method.recipe, key)
    return value.get("name") if isinstance(value, Mapping) else value


def paired_with_base(method: Method, bases: Sequence[Method], baseline: Mapping[str, Any]) -> Paired | None:
    """Return the differences to the only baseline, or to the one with the same settings otherwise."""
    if any(method is base for base in bases):
        return None
    alike = [base for base in bases if len(bases) == 1 or rest_key(base, baseline) == rest_key(method, baseline)]
    return paired(method, alike[0]) if alike else None


def rest_key(method: Method, baseline: Mapping[str, Any]) -> str:
    """Return a key that is equal for methods that differ only in what the baseline names, and in its options."""
    flat = flatten(identity(method.recipe))
    return key_of({k: v for k, v in flat.items() if not any(k == key or k.startswith(f"{key}.") for key in baseline)})


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
