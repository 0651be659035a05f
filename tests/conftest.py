"""What several tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch

from fedrecall import cli


@pytest.fixture(scope="session", autouse=True)
def a_cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decoded data sets go to a folder of this test session, not to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRECALL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tensors as small as those of tests are not worth a second thread, and other tests run beside."""
    torch.set_num_threads(1)


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
