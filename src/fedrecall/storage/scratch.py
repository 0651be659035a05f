"""Temporary folders of a process; the next process removes those that killed processes left behind.

Each holds a lock, which the system releases when its process ends. Unlike a process id, a lock also works across
containers and machines that share the directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import FileLock, Timeout

from fedrecall.errors import InputError

PREFIX = "fedrecall-"
OWNER = ".owner"  # the lock; a folder without one is not ours
_swept: set[Path] = set()  # the directories that this process has cleaned already


class ScratchFolder:
    """A new folder `path` in `parent` or the system's temporary directory; removed with this object."""

    def __init__(self, purpose: str, parent: Path | None = None) -> None:
        try:
            place = parent or Path(tempfile.gettempdir())
            remove_abandoned(place)
            made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}{purpose}-", dir=place))
        except OSError as error:
            if parent is not None:
                raise
            raise InputError(
                f"no temporary folder can be made: {error.strerror or error}; name a folder for it in TMPDIR"
            ) from None
        lock = FileLock(made / OWNER)
        with contextlib.suppress(OSError, NotImplementedError):  # without locks, no process removes it
            lock.acquire(timeout=0)
        # Renamed once it is locked, so that `remove_abandoned` never sees it unlocked.
        self.path = made.rename(made.with_name(made.name[1:]))
        self._finalizer = weakref.finalize(self, _remove, self.path, lock)

    def remove(self) -> None:
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def _remove(path: Path, lock: FileLock) -> None:
    lock.release(force=True)
    shutil.rmtree(path, ignore_errors=True)


def remove_abandoned(place: Path) -> None:
    """Delete this user's scratch folders of dead processes in `place`, once per process."""
    if place in _swept:
        return
    _swept.add(place)
    for path in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, NotImplementedError, Timeout):
            if is_own_folder(path) and stat.S_ISREG((path / OWNER).lstat().st_mode):
                lock = FileLock(path / OWNER)
                lock.acquire(timeout=0)  # fails while its process is alive
                _remove(path, lock)


def is_own_folder(path: Path) -> bool:
    """Whether this is a folder, not a link to one, that belongs to this user."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and (not hasattr(os, "getuid") or found.st_uid == os.getuid())
