"""Files that are written whole: beside, then renamed, so that a full disk or a kill never leaves half of one."""

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
LEFTOVERS = (".*.part.*", ".tmp??????")  # of processes that were killed: ours, and what safetensors writes first


@contextmanager
def replace_file(path: Path, *, flushed: bool = True, private: bool = False) -> Iterator[Path]:
    """A file beside, with the same ending, to be written; at the end it becomes `path`, or nothing is left of it.

    `flushed` waits until it is on the disk: a power cut then leaves the old file or the new one. One that is
    `private` stays so.
    """
    beside = path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        with explain_write_errors(path):
            beside.unlink(missing_ok=True)  # it could be a link, which would lead elsewhere
            yield beside
            # Where safetensors has chosen, whatever the user's choice is.
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
    """The permissions that a new file gets here: only a new file tells."""
    probe = path.with_name(f"{path.stem}.mode{path.suffix}")
    try:
        probe.touch()
        return stat.S_IMODE(probe.stat().st_mode)
    finally:
        probe.unlink(missing_ok=True)


def is_only_ours(found: os.stat_result, others: int = 0o077) -> bool:
    """Whether this user owns a file, and nobody else has any of the permissions `others`."""
    return os.name != "posix" or (found.st_uid == os.geteuid() and not found.st_mode & others)


def write_text(path: Path, text: str) -> None:
    with replace_file(path) as beside:
        beside.write_text(text, encoding="utf-8")


def flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into a sentence with the file's name."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from None
    except SafetensorError as error:  # has the system's error in its words only
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
    """Delete files that a killed process had not written to their end."""
    for pattern in LEFTOVERS:
        for path in folder.glob(pattern):
            delete_file(path, below)


def delete_file(path: Path, below: Path) -> None:
    """Delete a regular file that really lies below a folder: nothing that a link leads to, nor the link."""
    try:
        inside = path.parent.resolve().is_relative_to(below.resolve())
        if inside and stat.S_ISREG(path.lstat().st_mode):
            path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise write_error(path, error, "deleted") from None


def remove_dead_versions(path: Path) -> None:
    """Delete what processes that are gone had begun to write beside this file."""
    for beside in path.parent.glob(glob.escape(f".{path.stem}.") + "*" + glob.escape(f".part{path.suffix}")):
        number = beside.name.removesuffix(f".part{path.suffix}").rpartition(".")[2]
        if number.isdecimal() and is_gone(int(number)):
            with contextlib.suppress(OSError):
                beside.unlink()


def is_gone(process: int) -> bool:
    """Has the process of this number ended? Where that cannot be told, no."""
    if os.name != "posix":  # elsewhere to ask is to kill
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
