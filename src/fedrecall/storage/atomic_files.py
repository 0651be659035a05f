"""Atomic writes: to a temporary file that is then renamed, so that a full disk or a kill leaves no half file."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedrecall.errors import WriteError

PRIVATE = 0o600
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def replace_file(path: Path, *, flushed: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`; rename it onto `path` on success, delete it on failure.

    `flushed` syncs the file to disk before the rename, so that a power cut leaves the old file or the new one.
    """
    beside = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        with explain_write_errors(path):
            beside.unlink(missing_ok=True)  # a link would redirect the write
            yield beside
            if flushed:
                flush(beside)
            beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def is_only_ours(facts: os.stat_result, others: int = 0o077) -> bool:
    """Whether this user owns a file and nobody else has any of the permissions `others`."""
    return os.name != "posix" or (facts.st_uid == os.geteuid() and not facts.st_mode & others)


def write_bytes(path: Path, content: bytes, *, flushed: bool = True) -> None:
    with replace_file(path, flushed=flushed) as beside:
        beside.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Convert system errors into a `WriteError` that names the file."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from None


def write_error(path: Path, error: OSError, what: str = "written") -> WriteError:
    failure = WriteError(f"the file {str(path)!r} cannot be {what}: {error.strerror or error}")
    if error.errno not in FULL:
        failure.remedy = "mend that"
    return failure


def remove_leftovers(folder: Path, below: Path) -> None:
    """Delete the temporary files of killed processes."""
    for path in folder.glob(".*.part.*"):
        delete_file(path, below)


def delete_file(path: Path, below: Path) -> None:
    """Delete a regular file inside the folder `below`; leave links and files that resolve outside it."""
    try:
        inside = path.parent.resolve().is_relative_to(below.resolve())
        if inside and stat.S_ISREG(path.lstat().st_mode):
            path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise write_error(path, error, "deleted") from None


def remove_dead_versions(path: Path) -> None:
    """Delete the temporary files of `path` that dead processes left behind."""
    for beside in path.parent.glob(glob.escape(f".{path.stem}.") + "*" + glob.escape(f".part{path.suffix}")):
        number = beside.name.removesuffix(f".part{path.suffix}").rpartition(".")[2]
        if number.isdecimal() and is_gone(int(number)):
            with contextlib.suppress(OSError):
                beside.unlink()


def is_gone(process: int) -> bool:
    """Whether a process is known to have ended."""
    if os.name != "posix":  # on Windows `os.kill` terminates the process, whatever the signal
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
