"""The user's secret on this machine, by which runs that were made here are known: made once, read by nobody else.

Where it is damaged or open to others, it is as if there were none, and an `InputError` says why.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
import tempfile
from pathlib import Path

from fedrecall.errors import InputError
from fedrecall.safe_parsing import reason_of

KEY = "key"
BYTES = 32
# Not through a link, and without waiting for a pipe.
CAREFUL = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


def state_folder() -> Path:
    """What belongs to this user on this machine: FEDRECALL_STATE, or the place that the system has for it."""
    try:
        folder = Path(os.environ.get("FEDRECALL_STATE") or usual_place() / "fedrecall")
    except RuntimeError:
        raise InputError("this user has no home folder; name a folder for the key in FEDRECALL_STATE") from None
    if not folder.is_absolute():  # the working folder may be anybody's
        raise InputError(f"the folder {str(folder)!r} for the key is not named from the root on")
    return folder


def usual_place() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    given = os.environ.get("XDG_STATE_HOME", "")
    return Path(given) if os.path.isabs(given) else Path.home() / ".local" / "state"


def user_key(*, make: bool) -> bytes:
    """The key; with `make`, a new one where there is none."""
    path = state_folder() / KEY
    try:
        with contextlib.suppress(FileNotFoundError):
            return read_key(path)
        if not make:
            raise InputError("this user has marked no run on this machine yet")
        make_key(path)
        return read_key(path)
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else reason_of(error)
        raise InputError(f"the key {str(path)!r} cannot be read or made: {reason}") from None


def read_key(path: Path) -> bytes:
    number = os.open(path, CAREFUL)
    try:
        refuse_open(path, os.fstat(number))
        key = os.read(number, BYTES + 1)
    finally:
        os.close(number)
    if len(key) != BYTES:
        raise InputError(f"the key {str(path)!r} is damaged; delete it, and the next run makes another")
    return key


def refuse_open(path: Path, found: os.stat_result) -> None:
    """What somebody else may have read or written is no secret of this user's."""
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"the key {str(path)!r} is no regular file")
    if os.name != "posix":
        return
    if found.st_uid != os.geteuid():
        raise InputError(f"the key {str(path)!r} belongs to another user")
    if found.st_mode & 0o077:
        raise InputError(f"others can read the key {str(path)!r}; delete it, and the next run makes another")


def make_key(path: Path) -> None:
    """Whole or not at all; of two processes that make one at once, both have the first one's."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, beside = tempfile.mkstemp(prefix=f".{KEY}-", dir=path.parent)  # for this user alone
    try:
        with os.fdopen(number, "wb") as file:
            file.write(secrets.token_bytes(BYTES))
            file.flush()
            os.fsync(number)
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
    finally:
        os.unlink(beside)
