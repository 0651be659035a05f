"""What the differential tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from warm_processes import start_worker, warm_template


@pytest.fixture(scope="session")
def warm() -> Iterator[None]:
    """The process that those of the cases, and their workers, are forked from."""
    with warm_template():
        yield


@pytest.fixture
def warm_workers(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine `processes` start its workers by forks."""
    monkeypatch.setattr("fedrecall.engines.processes.connection.start", start_worker)
