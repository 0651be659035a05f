"""Atomic writes: to a temporary file that is then renamed, so that a full disk or a kill leaves no half file."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from fedrecall.errors import WriteError

PRIVATE = 0o600
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LEFTOVERS = (".*.part.*", ".tmp??????")  # temporary files: ours and those of safetensors


@contextmanager
def replace_file(path: Path, *, flushed: bool = True, private: bool = False) -> Iterator[Path]:
    """Yield a temporary path next to `path`; rename it onto `path` on success, delete it on failure.

    `flushed` syncs the file to disk before the rename, so that a power cut leaves the old file or the new one. A
    `private` file keeps the mode it was created with.
    """
    beside = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        with explain_write_errors(path):
            beside.unlink(missing_ok=True)  # a link would redirect the write
            yield beside
            # safetensors creates private files, whatever the umask.
            if not private and stat.S_IMODE(beside.stat().st_mode) == PRIVATE:
                beside.chmod(usual_mode(beside))
            if flushed:
                flush(beside)
            beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def usual_mode(path: Path) -> int:
    """Return the mode that a newly created file gets in this directory."""
    probe = path.with_name(f"{path.stem}.mode{path.suffix}")
    try:
        probe.touch()
        return stat.S_IMODE(probe.stat().st_mode)
    finally:
        probe.unlink(missing_ok=True)


def is_only_ours(found: os.stat_result, others: int = 0o077) -> bool:
    """Whether this user owns a file and nobody else has any of the permissions `others`."""
    return os.name != "posix" or (found.st_uid == os.geteuid() and not found.st_mode & others)


def write_text(path: Path, text: str) -> None:
    with replace_file(path) as beside:
        beside.write_text(text, encoding="utf-8")


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
    except SafetensorError as error:  # has the errno only in its message
        found = re.search(r"\(os error (\d+)\)", str(error))
        if not found:
            raise
        raise write_error(path, OSError(int(found[1]), os.strerror(int(found[1])))) from None


def write_error(path: Path, error: OSError, what: str = "written") -> WriteError:
    found = WriteError(f"the file {str(path)!r} cannot be {what}: {error.strerror or error}")
    if error.errno not in FULL:
        found.remedy = "mend that"
    return found


def remove_leftovers(folder: Path, below: Path) -> None:
    """Delete the temporary files of killed processes."""
    for pattern in LEFTOVERS:
        for path in folder.glob(pattern):
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
