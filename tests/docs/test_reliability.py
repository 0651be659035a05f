"""docs/reliability.md names tests that are there, with as many cases as it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from promises import PAGE, promised_cases

ROOT = Path(__file__).parents[2]
TEXT = PAGE.read_text(encoding="utf-8")


def source(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def test_each_row_names_a_test() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ") and "`test" in line]
    assert len(promised_cases()) == len(rows) > 15
    for file, test in promised_cases():
        assert f"def {test}(" in source(file), test
    for file in re.findall(r"tests/[\w/]+\.py", TEXT):
        assert (ROOT / file).exists(), file


def test_the_sum_is_that_of_the_rows() -> None:
    assert "1,900 and more in all" in TEXT
    assert 1900 <= sum(promised_cases().values()) < 2000


@pytest.mark.slow
def test_there_are_as_many_cases_as_the_page_says() -> None:
    promised = {key: count for key, count in promised_cases().items() if "check_count" not in source(key[0])}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "slow or not slow"]
    done = subprocess.run(
        [*command, *sorted({file for file, _ in promised})], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = Counter(tuple(line.partition("[")[0].split("::")) for line in done.stdout.splitlines() if "::" in line)
    assert {key: found[key] for key in promised} == promised
