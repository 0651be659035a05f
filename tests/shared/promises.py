"""The figures of docs/reliability.md, which the tests that it names are held to."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
ROW = re.compile(r"^\|.*\| `(tests/[\w/]+\.py)` `(test_\w+)` \| ([\d,]+) \|$", re.MULTILINE)


def promised_cases() -> dict[tuple[str, str], int]:
    """By test file and test: how many cases the page says that there are at least."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {(file, test): int(cases.replace(",", "")) for file, test, cases in rows}


def check_count(test: str, cases: int) -> None:
    """Did a test that goes through its cases by itself see as many as the page says?"""
    (promised,) = (count for (_, name), count in promised_cases().items() if name == test)
    assert cases >= promised, f"{test} saw {cases} cases, and docs/reliability.md says {promised}"
