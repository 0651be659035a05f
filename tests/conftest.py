"""What several tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from made_runs import make_run  # noqa: F401  (a fixture)
from warm_processes import start_worker, warm_template

from fedrecall.cli import main as cli

# To import one of these is to have another device in this process, or needs an extra.
collect_ignore_glob = ["shared/sim_device.py", "shared/device_*.py", "shared/flower_*.py"]


@pytest.fixture(scope="session", autouse=True)
def a_cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decoded data sets go to a folder of this test session, not to the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRECALL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def a_ledger_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs are recorded in a ledger of this test session, not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRECALL_STATE", str(tmp_path_factory.mktemp("state")))
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


@pytest.fixture(scope="session")
def warm() -> Iterator[None]:
    """The process that the workers of tests, and the cases of differential tests, are forked from."""
    with warm_template():
        yield


@pytest.fixture
def warm_workers(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine `processes` start its workers by forks: for tests of what workers do, not of how they start."""
    monkeypatch.setattr("fedrecall.engines.processes.connection.start", start_worker)


@pytest.fixture
def workers_of() -> Callable[[int], list[int]]:
    """The living worker processes of a process."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("looks for processes in /proc")

    def of(parent: int) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent_of_it = int(path.read_text().rpartition(")")[2].split()[1])
                command = path.with_name("cmdline").read_bytes()  # of a dead process that is not waited for: empty
            except OSError:
                continue
            if parent_of_it == parent and b"processes/worker_main.py" in command:
                found.append(int(path.parent.name))
        return sorted(found)

    return of
