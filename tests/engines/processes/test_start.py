"""How workers start: reached by nobody else, and missed if they do not begin."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedrecall import Federation, Iid, federate
from fedrecall.engines.processes import engine, worker_main
from fedrecall.errors import ClientError


@pytest.fixture
def federation() -> Federation:
    x, y = np.random.default_rng(0).normal(size=(60, 3)).astype("float32"), np.arange(60) % 2
    return Federation.from_arrays(x, y, partition=Iid(clients=4, validation=0.2))


def start(federation: Federation, out: Path, **settings) -> None:
    federate(nn.Linear(3, 2), federation, rounds=1, engine="processes", workers=2, out=out, **settings)


def listening_sockets(pid: int) -> set[str]:
    """The sockets of a process on which others can connect, by their numbers."""
    listening = set()
    for table in ("tcp", "tcp6", "unix"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            listens, inode = (words[3] == "00010000", words[6]) if table == "unix" else (words[3] == "0A", words[9])
            if listens:
                listening.add(f"socket:[{inode}]")
    opened = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing itself
            opened.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return opened & listening


def test_neither_the_engine_nor_a_worker_listens(federation, workers_of, tmp_path) -> None:
    seen = []

    def watch(line: dict) -> None:
        seen.extend(listening_sockets(pid) for pid in [os.getpid(), *workers_of(os.getpid())])

    start(federation, tmp_path / "run", watch=watch)
    assert seen == [set(), set(), set()]


# What a worker does instead of its work, after it has been started and after it has been greeted.
ENDS, WAITS = "raise SystemExit(7)\n", "import time\ntime.sleep(1000)\n"
GREETED = """
import sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
connection.send("here")
connection.recv()
"""


@pytest.fixture
def worker_does(monkeypatch, tmp_path):
    def replace(code: str) -> None:
        (tmp_path / "tmp").mkdir()
        (tmp_path / "worker_main.py").write_text(code)
        monkeypatch.setattr(worker_main, "__file__", str(tmp_path / "worker_main.py"))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))

    return replace


def worker_commands() -> list[bytes]:
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(path.read_bytes())
        except OSError:
            continue
    return commands


def check_nothing_is_left(tmp_path: Path) -> None:
    assert list((tmp_path / "tmp").glob("fedrecall-engine-*")) == []
    if Path("/proc/self/cmdline").exists():
        assert not any(str(tmp_path / "worker_main.py").encode() in command for command in worker_commands())


@pytest.mark.parametrize("before", ["", GREETED], ids=["started", "greeted"])
def test_workers_that_end_before_they_begin_end_the_run(before, worker_does, federation, tmp_path) -> None:
    worker_does(before + ENDS)
    with pytest.raises(ClientError, match="worker processes ended before they began, with exit code 7"):
        start(federation, tmp_path / "run")
    check_nothing_is_left(tmp_path)


@pytest.mark.parametrize("before", ["", GREETED], ids=["started", "greeted"])
def test_workers_that_do_not_begin_end_the_run(before, worker_does, federation, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(engine, "START", 2.0)
    worker_does(before + WAITS)
    with pytest.raises(ClientError, match=r"did not begin: it had 2 s, or execution\.client_timeout"):
        start(federation, tmp_path / "run")
    check_nothing_is_left(tmp_path)


def test_a_worker_that_cannot_import_says_what(worker_does, federation, tmp_path) -> None:
    path = str(Path(worker_main.__file__))
    code = Path(path).read_text().replace("sys.path[:] = libraries", "sys.path[:] = []")
    worker_does(code)
    with pytest.raises(ClientError, match=r"(?s)a worker process could not begin:.*No module named 'fedrecall'"):
        start(federation, tmp_path / "run")
    check_nothing_is_left(tmp_path)
