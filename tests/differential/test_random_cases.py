"""Random runs come to the same bits on every engine, or are refused in the same sentence.

A failure names the case's number, and the command that repeats it alone. DIFFERENTIAL_CASES is how many there are.
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from case_checks import Report, check_case
from random_cases import (
    BATCH_SIZES,
    CLIENTS,
    DATA,
    FIRST_ALGORITHMS,
    LATER,
    LATER_ALGORITHMS,
    LOOKS,
    OWN_OBJECTIVES,
    Case,
    case_of,
)  # fmt: skip

from fedrecall.engines.cpus import usable_cpus
from fedrecall.objectives import OBJECTIVES

CASES = int(os.environ.get("DIFFERENTIAL_CASES", "500"))
ONLY = os.environ.get("DIFFERENTIAL_CASE")
NUMBERS = [int(ONLY)] if ONLY else [*range(CASES - CASES // 5), *range(LATER, LATER + CASES // 5)]
TOGETHER = 25  # cases of one test
AT_ONCE = max(1, usable_cpus() // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))

# Cases that ever failed, and what it was. Those that take a second or more run with the slow tests.
FAILED_BEFORE = {
    131: "batch norm on batches of one sample: engines refused it in different words, and vectorised trained",
    145: "WSM with tau 0 and the pooled prior ended in an AssertionError",
    240: "a GroupNorm that comes first, on images of one channel, ended the process",
    292: "a GroupNorm after a frozen stem ended the process",
    526: "a strided convolution on one channel, of byte images in bfloat16, read memory that was not its own",
    891: "a strided convolution on one channel read memory that was not its own",
    1181: "the same in a cohort of one client",
    1353: "the same on byte images",
    1771: "a lazy model in float64 was given a batch in float32",
}
SLOW = {145, 891, 1181}


def checked(numbers: list[int], folder: Path) -> list[Report]:
    """Check some cases, and fail with all that is wrong with them."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        reports = list(threads.map(lambda number: check_case(number, folder / str(number)), numbers))
    wrong = [describe(report) for report in reports if report.problems]
    assert not wrong, "\n\n".join(wrong)
    return reports


def describe(report: Report) -> str:
    file = "tests/differential/test_random_cases.py"
    command = f"DIFFERENTIAL_CASE={report.number} .venv/bin/python -m pytest -m slow {file}"
    return "\n".join([f"{case_of(report.number)}", *report.problems, f"To repeat it alone: {command}"])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(NUMBERS), TOGETHER))
def test_all_engines_come_to_the_same_bits(first, tmp_path, warm) -> None:
    checked(NUMBERS[first : first + TOGETHER], tmp_path)


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in FAILED_BEFORE]
)
def test_a_case_that_failed_before_does_so_no_more(number, tmp_path, warm) -> None:
    checked([number], tmp_path)


def test_a_case_is_made_from_its_number_alone() -> None:
    for number in (3, 14, 15):
        one, other = case_of(number), case_of(number)
        assert str(one) == str(other)
        weights = [[*case.instance.state_dict().values()] for case in (one, other)]
        assert all(map(torch.equal, *weights))
        assert one.federation().digest() == other.federation().digest()


def test_the_cases_have_all_that_they_are_meant_to_have() -> None:
    cases = [case_of(number) for number in [*range(500), *range(LATER, LATER + 200)]]
    layers = Counter(kind for case in cases for kind in {type(inner).__name__ for inner in case.module().modules()})
    names = ["Conv2d", "MaxPool2d", "AvgPool2d", "Linear", "BatchNorm2d", "BatchNorm1d", "GroupNorm", "LayerNorm"]
    names += ["InstanceNorm2d", "Dropout", "Embedding", "Residual", "Tied", "GRU", "LazyLinear"]
    assert {name: layers[name] for name in names if layers[name] < 5} == {}
    assert_all(cases, "data", {*DATA})
    assert_all(cases, "look", {*LOOKS})
    assert_all([case.algorithm for case in cases], "name", {*FIRST_ALGORITHMS, *LATER_ALGORITHMS})
    named = [case.objective for case in cases if isinstance(case.objective, dict)]
    assert_all(named, "name", {*OBJECTIVES})
    assert len(cases) - len(named) >= 5 * len(OWN_OBJECTIVES)
    local = [case.local for case in cases]
    assert_all(local, "batch_size", {*BATCH_SIZES})
    assert_all(local, "step", {"exact", "lanes"})
    assert_all(local, "partial_batch", {"drop", "keep"})
    frozen = [case for case in cases if any(not p.requires_grad for p in case.instance.parameters())]
    assert len(frozen) >= 20
    assert sum(len(set(case.sizes)) > 1 for case in cases) >= 100
    assert {case.per_round for case in cases} == {*CLIENTS}


def assert_all(things: list, key: str, wanted: set) -> None:
    """Each of these values is there several times."""
    found = Counter(thing[key] if isinstance(thing, dict) else getattr(thing, key) for thing in things)
    assert {value: found[value] for value in wanted if found[value] < 10} == {}


def test_a_report_says_how_a_case_is_repeated() -> None:
    case: Case = case_of(7)
    said = describe(Report(7, ["metrics.jsonl differs"]))
    assert "metrics.jsonl differs" in said
    assert "DIFFERENTIAL_CASE=7 " in said
    assert str(case.instance) in said
