"""The table of a study as numbers: a row for each combination of settings, over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedrecall.errors import InputError
from fedrecall.recipe.display_titles import titles
from fedrecall.recipe.layers import look_up
from fedrecall.report.comparison import Method
from fedrecall.report.intervals import interval, paired_differences, sample_deviation
from fedrecall.report.significance import holm, paired_p
from fedrecall.report.validation import last_validation, window_of
from fedrecall.report.wording import count_of
from fedrecall.runs.reader import RunRecord, is_number
from fedrecall.studies.cells import Cell, is_baseline, short_value, varying_keys
from fedrecall.studies.design import Design
from fedrecall.studies.folder import State, StudyFolder
from fedrecall.studies.tuning import choose_by_validation, group_key

VISIBLE = 0.0005  # a difference that a table of percent with one decimal shows
METRICS = ("final_accuracy", "final_accuracy_macro", "val_accuracy", "forgetting")


@dataclass(frozen=True)
class Paired:
    """The differences of two methods, one for each shared seed."""

    values: tuple[float, ...]
    p_holm: float | None = None  # corrected for the rows of the table, if that was asked

    @property
    def p(self) -> float | None:
        """The p-value of the mean, by Student's paired test."""
        return paired_p(self.values)

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean."""
        return interval(self.values)

    @property
    def agree(self) -> int:
        """The number of seeds whose difference has the sign of the mean."""
        return sum(value * self.mean > 0 for value in self.values)


def paired(method: Method, other: Method, key: str = "final_accuracy") -> Paired | None:
    """Return the paired differences of two methods; None if they share no seed."""
    values = paired_differences(method, other, key)
    return Paired(tuple(values)) if values else None


def mean_record(key: str, values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and the standard deviation as plain values."""
    return {key: float(np.mean(values)) if values else None, f"{key}_sd": sample_deviation(values)}


def with_holm(differences: Sequence[Paired | None]) -> list[Paired | None]:
    """Return the differences with their p-values corrected for all of them."""
    corrected = holm([each.p if each else None for each in differences])
    return [replace(each, p_holm=p) if each else None for each, p in zip(differences, corrected)]


def paired_record(paired: Paired | None, *, corrected: bool = False) -> dict[str, float | None]:
    """Return the mean difference, its interval and the number of seeds that agree as plain values."""
    low, high = (paired.interval if paired else None) or (None, None)
    return {
        "difference": paired.mean if paired else None,
        "difference_low": low,
        "difference_high": high,
        "p": paired.p if paired else None,
        **({"p_holm": paired.p_holm if paired else None} if corrected else {}),
        "agree": paired.agree if paired else None,
    }


@dataclass(frozen=True)
class Result:
    """The states of a cell's runs and the records of the finished ones."""

    cell: Cell
    states: list[State]
    runs: list[RunRecord]

    @classmethod
    def read(cls, cell: Cell, folder: StudyFolder) -> Result:
        states = [folder.state(slot) for slot in cell.slots]
        done = [slot for slot, state in zip(cell.slots, states) if state.kind == "finished"]
        return cls(cell, states, [RunRecord(folder.run(slot)) for slot in done])

    @property
    def method(self) -> Method:
        return Method(self.runs, [], titles())

    @property
    def finished(self) -> bool:
        return len(self.runs) == len(self.states)

    def numbers(self, key: str) -> list[float]:
        """Return the value of a metric for each finished run that has it."""
        if key == "val_accuracy":
            found = [last_validation(run) for run in self.runs]
        else:
            found = [run.summary.get(key) for run in self.runs]
        return [float(value) for value in found if is_number(value)]

    def scores(self) -> list[float | None]:
        """Return the validation accuracy of each run, by which options are chosen; None for unfinished runs."""
        known = self.numbers("val_accuracy")
        if len(known) < len(self.runs):
            raise InputError(f"the cell {self.cell.name!r} has runs without a validation accuracy to choose by")
        return [*known, *([None] * (len(self.states) - len(known)))]

    def trouble(self) -> str:
        """Return the states of the unfinished runs in words, with equal states grouped."""
        words: dict[str, list[str]] = {}
        for slot, state in zip(self.cell.slots, self.states):
            if state.kind != "finished":
                why = state.words if state.kind == "diverged" else f"{WORDS[state.kind]} {state.words}".strip()
                words.setdefault(why, []).append(str(slot.seed))
        seeds = [f"{why} (seed {', '.join(which)})" for why, which in words.items()]
        return "; ".join(seeds)


WORDS = {"failed": "failed:", "waiting": "not run yet", "begun": "not finished yet"}


@dataclass(frozen=True)
class StudyRow:
    """A combination of settings over its seeds."""

    cell: Cell
    settings: dict[str, Any]  # by column key
    seeds: int
    numbers: dict[str, list[float]]  # by metric, a value per seed
    paired: Paired | None  # the final accuracy minus that of the baseline
    is_baseline: bool
    trouble: str  # the states of unfinished runs in words
    runs: list[RunRecord]

    def record(self, *, corrected: bool = False) -> dict[str, Any]:
        """Return the row as plain values."""
        line: dict[str, Any] = {**self.settings, "seeds": self.seeds}
        for key, values in self.numbers.items():
            line |= mean_record(key, values)
        return {**line, **paired_record(self.paired, corrected=corrected), "state": self.trouble or "finished"}


@dataclass(frozen=True)
class StudyTable:
    """The rows of a study's table and the notes about them."""

    keys: list[str]  # the settings that are columns
    chosen: list[str]  # the keys whose values were chosen on validation data
    metrics: list[str]
    rows: list[StudyRow]
    has_baseline: bool
    notes: list[str]
    corrected: bool = False  # p-values also by Holm's method

    @property
    def has_trouble(self) -> bool:
        """Whether any row has unfinished runs."""
        return any(row.trouble for row in self.rows)

    def records(self) -> list[dict[str, Any]]:
        """Return each row as plain values, all with the same keys."""
        aside = () if self.has_baseline else paired_record(None, corrected=True).keys()
        return [
            {key: value for key, value in row.record(corrected=self.corrected).items() if key not in aside}
            for row in self.rows
        ]


def study_table(design: Design, cells: Sequence[Cell], folder: StudyFolder) -> StudyTable:
    """Return the table from the runs' records; it does not depend on when or how fast they were executed."""
    results = {cell.name: Result.read(cell, folder) for cell in cells}
    shown = list(results.values())
    if design.choose:
        scores = {name: result.scores() for name, result in results.items()}
        shown = [results[cell.name] for cell in choose_by_validation(cells, design.choose, scores)]
    metrics = [key for key in METRICS if any(result.numbers(key) for result in shown)]
    if not any(map(differs_by_class, shown)):
        metrics = [key for key in metrics if key != "final_accuracy_macro"]
    keys = varying_keys([cell.settings for cell in cells])
    baselines = baselines_of(design, shown)
    rows = [study_row(design, result, keys, metrics, baselines) for result in shown]
    if design.holm:
        rows = [replace(row, paired=each) for row, each in zip(rows, with_holm([row.paired for row in rows]))]
    notes = notes_of(design, list(results.values()), shown)
    return StudyTable(keys, list(design.choose), metrics, rows, bool(design.baseline), notes, design.holm)


def differs_by_class(result: Result) -> bool:
    """Whether the accuracy by class visibly differs from that over samples, as with unequal test classes."""
    pairs = zip(result.numbers("final_accuracy"), result.numbers("final_accuracy_macro"))
    return any(abs(first - second) >= VISIBLE for first, second in pairs)


def baselines_of(design: Design, results: Sequence[Result]) -> dict[str, Result]:
    """Return the baselines by the settings that a row shares with its baseline."""
    if not design.baseline:
        return {}
    return {published_columns(design, result): result for result in results if is_baseline(design, result.cell)}


def published_columns(design: Design, result: Result) -> str:
    return group_key(result.cell.settings, [*design.choose, *design.baseline])


def study_row(
    design: Design, result: Result, keys: list[str], metrics: list[str], baselines: dict[str, Result]
) -> StudyRow:
    against = baselines.get(published_columns(design, result))
    difference = None
    if against is not None and against is not result and result.runs and against.runs:
        difference = paired(result.method, against.method)
    return StudyRow(
        cell=result.cell,
        settings={key: setting_of(result, key) for key in keys},
        seeds=len(result.runs),
        numbers={key: result.numbers(key) for key in metrics},
        paired=difference,
        is_baseline=against is result,
        trouble=result.trouble(),
        runs=result.runs,
    )


def setting_of(result: Result, key: str) -> Any:
    """Return a setting as a number or word; if the cell does not set the key, the value in its runs' recipes."""
    if key in result.cell.settings:
        value = result.cell.settings[key]
    else:
        value = look_up(result.runs[0].recipe, key) if result.runs else "-"
        value = value["name"] if isinstance(value, dict) and "name" in value else value
    return value if isinstance(value, int | float) else short_value(value)


def notes_of(design: Design, results: Sequence[Result], shown: Sequence[Result]) -> list[str]:
    """Return the notes below the table, a sentence each."""
    notes = [final_remarks(shown)]
    if len(design.seeds) > 1:
        notes.append("± is the standard deviation over seeds.")
    if design.baseline:
        words = ", ".join(f"{key} {short_value(value)}" for key, value in design.baseline.items())
        notes.append(
            f"Differences are to {words}, paired by seeds, with the 95 % interval of their mean, its p-value "
            "(both Student's t) and the number of seeds that agree with it in sign."
        )
        if design.holm:
            notes.append("P-values are also corrected for all rows by Holm's method.")
    if design.choose:
        what = " and ".join(f"{key} (of {', '.join(map(short_value, design.grid[key]))})" for key in design.choose)
        rounds = sorted({window_of(run) for result in results for run in result.runs})
        last = count_of(rounds[0], "round") if len(rounds) == 1 else "tested rounds"
        notes.append(
            f"Chosen for each row: {what}, by the mean validation accuracy over the last {last} and the seeds; "
            "test data had no say."
        )
        left = [f"{result.cell.name}: {result.trouble()}" for result in results if not result.finished]
        notes += [f"Not among the candidates: {'; '.join(left)}."] if left else []
    return [note for note in notes if note]


def final_remarks(shown: Sequence[Result]) -> str:
    """Return a definition of the final accuracy, or an empty text if it differs between runs."""
    counts = {run.summary.get("final_accuracy_rounds") for result in shown for run in result.runs}
    if len(counts) != 1 or not (count := counts.pop()):
        return ""
    if count == 1:
        return "Final accuracy is the test accuracy of the last round."
    return f"Final accuracy is the mean test accuracy over the last {count} rounds."
