"""What tests of the report share."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from fedrecall.recipe.display_titles import titles
from fedrecall.report.comparison import Method, group_methods
from fedrecall.runs.reader import load_run


@pytest.fixture
def methods(tmp_path: Path, make_run: Callable[..., Path]) -> Callable[..., list[Method]]:
    """The methods of runs that are given as keywords of `make_run`."""

    numbers = count()

    def grouped(*runs: dict) -> list[Method]:
        return group_methods([load_run(make_run(tmp_path / str(next(numbers)), **run)) for run in runs], titles())

    return grouped
