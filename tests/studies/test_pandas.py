"""Runs and studies as DataFrames, where pandas is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedrecall import Run
from fedrecall.errors import InputError


@pytest.mark.heavy
def test_the_metrics_of_a_run_are_a_frame_by_round(make_run, tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    run = Run(make_run(tmp_path / "run", final=0.5))
    frame = run.to_pandas()
    assert list(frame.index) == list(range(1, 9))
    assert frame.loc[8, "val_accuracy"] == 0.5
    assert frame["val_accuracy"].isna().sum() == 4  # of rounds that are not evaluated


def test_without_pandas_that_is_a_sentence(make_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    with pytest.raises(InputError, match=r"run\.metrics"):
        Run(make_run(tmp_path / "run")).to_pandas()
