"""What several tests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from fedrecall import cli


@dataclass
class Finished:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def fedrecall(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """The console script, called in this process."""

    def call(*words: object) -> Finished:
        monkeypatch.setattr("sys.argv", ["fedrecall", *map(str, words)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Finished(code, captured.out, captured.err)

    return call
