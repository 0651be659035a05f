"""What must hold of every random case: the same bits, or the same refusal, on all engines."""

from __future__ import annotations

import copy
import faulthandler
import json
import shutil
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from case_runs import FirstRound, Outcome, nudged, run, run_in_two_parts, use_warm_workers
from lanes_against_float64 import lanes_problems
from random_cases import Case, case_of
from torch import nn
from warm_processes import run_warm

T = TypeVar("T")
PROCESSES = {f"processes {n}": n for n in (1, 2, 3)}
PARTS = {"interrupted": (("serial", 1), ("processes", 2)), "killed": (("processes", 2), ("serial", 1))}
VARIANTS = [*PROCESSES, *PARTS]
CLOSE = 1e-4  # of `vectorised` to `serial` after one round, relative, where nothing makes roundings larger
NUDGE = 1e-6  # and else no further than this change of the weights leads, so many times
TIMES_NUDGED = 30.0
CRASH = "crash.txt"
MOST_SECONDS = 120.0  # for a case with all its engines; most take two


@dataclass
class Report:
    """What was found of a case."""

    number: int
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    refused: str | None = None
    vectorised: str | None = None  # why `vectorised` refused it
    notes: list[str] = field(default_factory=list)
    in_lanes: bool = False  # a step in lanes was compared with float64
    parts: dict[str, float] = field(default_factory=dict)  # seconds


def check_case(number: int, folder: Path) -> Report:
    """Check a case in a process of its own, which may crash. Of one without problems no files are left."""
    folder.mkdir(parents=True)
    code = run_warm(check_and_write, number, folder, seconds=MOST_SECONDS)
    path = folder / "report.json"
    if path.exists():
        report = Report(**json.loads(path.read_text()))
        if not report.problems:
            shutil.rmtree(folder)
        return report
    how = "did not end" if code is None else f"ended with exit code {code}"
    return Report(number, [f"the process {how}\n{(folder / CRASH).read_text()}"])


def check_and_write(number: int, folder: Path) -> None:
    torch.set_num_threads(1)
    use_warm_workers()
    more_parts_for_threads()
    warnings.filterwarnings("ignore", message="There is a performance drop")  # of operations that torch cannot map
    faulthandler.enable((folder / CRASH).open("w"))
    report, began = Report(number), time.perf_counter()
    try:
        check(case_of(number), folder, report)
    except Exception:
        report.problems.append(traceback.format_exc())
    report.seconds = time.perf_counter() - began
    (folder / "report.tmp").write_text(json.dumps(asdict(report)))
    (folder / "report.tmp").rename(folder / "report.json")


def more_parts_for_threads() -> None:
    """Let `vectorised` part even few clients, so that several threads have something to do."""
    from fedrecall.engines import vectorised

    vectorised.CLIENTS, vectorised.LEAST_WORK = 32, 1


def check(case: Case, folder: Path, report: Report) -> None:
    serial = timed(report, "serial", lambda: run(case, folder / "serial", "serial"))
    report.refused, report.notes = serial.refusal, serial.notes
    report.problems += refused_late(serial)
    variant = VARIANTS[case.number % len(VARIANTS)]
    other = timed(report, variant, lambda: run_variant(case, variant, folder))
    report.problems += [f"serial and {variant}: {problem}" for problem in serial.differences(other)]
    if variant in PROCESSES and serial.notes != other.notes:
        report.problems.append(f"serial and {variant}: notes {serial.notes} and {other.notes}")
    report.problems += vectorised_problems(case, folder, serial, report)
    if case.local["step"] == "lanes" and not serial.refusal:
        found = timed(report, "float64", lambda: lanes_problems(case))
        report.in_lanes = found is not None
        report.problems += [f"lanes and float64: {problem}" for problem in found or []]


def refused_late(outcome: Outcome) -> list[str]:
    """What cannot be run is refused before round 1; only a run whose numbers grow beyond all bounds ends later."""
    late = outcome.refusal and not outcome.diverged and outcome.files.get("metrics.jsonl")
    return [f"refused after a round: {outcome.refusal}"] if late else []


def timed(report: Report, name: str, call: Callable[[], T]) -> T:
    began = time.perf_counter()
    try:
        return call()
    finally:
        report.parts[name] = time.perf_counter() - began


def run_variant(case: Case, variant: str, folder: Path) -> Outcome:
    if variant in PROCESSES:
        return run(case, folder / variant, "processes", PROCESSES[variant])
    first, then = PARTS[variant]
    return run_in_two_parts(case, folder / variant, first, then, killed=variant == "killed")


def vectorised_problems(case: Case, folder: Path, serial: Outcome, report: Report) -> Iterator[str]:
    """The same with any number of threads, and what `serial` comes to, but for rounding."""
    threads = 2 + case.number % 2
    one = timed(report, "vectorised 1", lambda: run(case, folder / "vectorised 1", "vectorised", 1))
    again = ("vectorised", threads)
    if case.number % 3:
        more = timed(report, "vectorised", lambda: run(case, folder / "vectorised", *again))
    else:
        parts = (again, ("vectorised", 1))
        more = timed(report, "vectorised", lambda: run_in_two_parts(case, folder / "vectorised", *parts, killed=False))
    report.vectorised = one.refusal
    yield from refused_late(one)
    for problem in one.differences(more):
        yield f"vectorised with 1 and {threads} threads: {problem}"
    if one.notes != more.notes:
        yield f"vectorised with 1 and {threads} threads: notes {one.notes} and {more.notes}"
    if nn.Module.__call__ is not nn.Module._wrapped_call_impl:
        yield "torch.nn.Module is patched after a run"
    own_refusal = one.refusal is not None and "'vectorised'" in one.refusal
    if serial.refusal != one.refusal and not (own_refusal or serial.diverged or one.diverged):
        yield f"serial ended with {serial.refusal!r}, vectorised with {one.refusal!r}"
    if not serial.refusal and not one.refusal and not has_max_pooling(case.instance):
        assert serial.first
        assert one.first
        yield from distance_problems(case, folder, serial.first, one.first)


def has_max_pooling(module: nn.Module) -> bool:
    """Whether rounding may decide which of two values is the largest."""
    return any(isinstance(inner, nn.MaxPool2d) for inner in module.modules())


def distance_problems(case: Case, folder: Path, serial: FirstRound, other: FirstRound) -> Iterator[str]:
    """Where two engines are further apart after a round than rounding explains."""
    loss = abs(serial.loss - other.loss) / (1 + abs(serial.loss))
    vector = distance(serial, other)
    if loss <= CLOSE and vector <= CLOSE:
        return
    instance = nudged(copy.deepcopy(case.instance), NUDGE)
    again = run(case, folder / "nudged", "serial", model=instance)
    start = run(case, folder / "instance", "serial", model=copy.deepcopy(case.instance))
    assert again.first
    assert start.first
    allowed = TIMES_NUDGED * distance(start.first, again.first)
    allowed_loss = TIMES_NUDGED * abs(start.first.loss - again.first.loss) / (1 + abs(serial.loss))
    if not vector <= max(CLOSE, allowed):
        yield f"serial and vectorised: {vector:.3g} apart after a round, where {allowed:.3g} is allowed"
    if not loss <= max(CLOSE, allowed_loss):
        yield f"serial and vectorised: train_loss {serial.loss} and {other.loss}, {allowed_loss:.3g} is allowed"


def distance(one: FirstRound, other: FirstRound) -> float:
    assert one.w is not None
    assert other.w is not None
    return float((one.w - other.w).norm() / one.w.norm())
