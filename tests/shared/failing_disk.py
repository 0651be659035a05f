"""A disk on which the n-th change below a folder fails, or at which the process is killed.

Every change counts: a file that is opened to be written, each write (before it, and when half of it is there),
flushes, renames, deletions, folders, permissions. Reading changes nothing and is not counted.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

AUDITED = {"os.rename": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.chmod": 1, "os.truncate": 1}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

Fault = Callable[[str], None]  # is told the kind of change; it kills, raises or lets it be


class Disk:
    """Counts the changes below a folder, and lets the fault strike at one of them."""

    def __init__(self, folder: Path, at: int | None, fault: Fault) -> None:
        self.folder = os.path.abspath(folder)
        self.at, self.fault = at, fault
        self.changes: list[str] = []  # their kinds

    def is_below(self, path: Any) -> bool:
        if isinstance(path, int):
            return False
        whole = os.path.abspath(os.fsdecode(path))
        return whole == self.folder or whole.startswith(self.folder + os.sep)

    def change(self, kind: str) -> None:
        self.changes.append(kind)
        if len(self.changes) == self.at:
            self.fault(kind)

    def strikes_next(self) -> bool:
        return len(self.changes) + 1 == self.at


_watching: list[Disk] = []  # the one that watches now, if any: an audit hook cannot be taken away again
_hooked: list[bool] = []
_open = io.open


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event == "open":
        path, _, flags = arguments
        if flags & WRITING and _watching[0].is_below(path):
            _watching[0].change("open")
    elif event in AUDITED and any(map(_watching[0].is_below, arguments[: AUDITED[event]])):
        _watching[0].change(event.removeprefix("os."))


class WatchedFile(io.FileIO):
    """A file without a buffer, whose every write is one of the system's."""

    def write(self, content: Any) -> int:
        content = memoryview(content).cast("B")
        for disk in _watching:
            disk.change("write")
            if disk.strikes_next():
                super().write(content[: len(content) // 2])
            disk.change("half a write")
        return super().write(content)

    def truncate(self, size: int | None = None) -> int:
        for disk in _watching:
            disk.change("truncate")
        return super().truncate(size)


def _watched_open(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
                  newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
    changes = set(mode) & set("wax+")
    if not changes or not any(disk.is_below(file) for disk in _watching):
        return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
    raw = WatchedFile(file, mode.replace("b", "").replace("t", ""), closefd, opener)
    if buffering == 0:
        return raw
    buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
    return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)


def _watched_fsync(file: int) -> None:
    """Without waiting for the disk: what a process has written outlives a kill, though not a power cut."""
    for disk in _watching:
        disk.change("fsync")


@contextmanager
def watched(folder: Path, at: int | None, fault: Fault) -> Iterator[Disk]:
    """Inside, the fault strikes at the change of that number (None: at none)."""
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked.append(True)
    disk = Disk(folder, at, fault)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", _watched_open)
        patch.setattr(os, "fsync", _watched_fsync)
        _watching.append(disk)
        try:
            yield disk
        finally:
            _watching.clear()


def kill(kind: str) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError  # never


def refuse(number: int) -> Fault:
    """The system's refusal, as Python tells of it."""

    def fault(kind: str) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fault


def let_be(kind: str) -> None:
    return


REFUSALS = (errno.ENOSPC, errno.EIO, errno.EACCES)
