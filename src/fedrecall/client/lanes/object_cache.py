"""Compiled kernels on disk, below the user's cache folder: half a second to make, a few milliseconds to load.

They are executed, so only what this user has written is read: the folder and its files are this user's alone, and
each file begins with a code of its content that cannot be made without the user's key. Whatever else lies there is
thrown away, and where there is no such folder or key, nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import stat
from collections.abc import Callable
from pathlib import Path

from fedrecall.atomic_files import PRIVATE, replace_file
from fedrecall.data.cache import cache_folder
from fedrecall.errors import InputError
from fedrecall.runs.user_key import CAREFUL, user_key

OURS_ALONE = 0o700
CODE = hashlib.sha256().digest_size


def cached_object(name: str, compile: Callable[[], bytes]) -> bytes:
    """The object code of this name, which stands for all that it was made from."""
    try:
        key = user_key(make=True)
        folder = own_folder()
    except (InputError, OSError, RuntimeError):  # no home folder, or not ours, or the disk is full
        return compile()
    path = folder / f"{name}.o"
    data = read(path, key)
    if data is None:
        data = compile()
        with contextlib.suppress(InputError, OSError):
            write(path, key, data)
    return data


def own_folder() -> Path:
    """The folder, which belongs to this user and is open to nobody else."""
    folder = cache_folder() / "lanes"
    folder.mkdir(mode=OURS_ALONE, parents=True, exist_ok=True)
    if not is_ours(os.lstat(folder)) or not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise InputError(f"the folder {str(folder)!r} is open to others")
    return folder


def is_ours(found: os.stat_result) -> bool:
    return os.name != "posix" or (found.st_uid == os.geteuid() and not found.st_mode & 0o077)


def read(path: Path, key: bytes) -> bytes | None:
    """What was written under this name; what is not as it was written is deleted."""
    try:
        number = os.open(path, CAREFUL)
    except FileNotFoundError:
        return None
    except OSError:  # a link, which leads elsewhere
        discard(path)
        return None
    with os.fdopen(number, "rb") as file:
        found = os.fstat(number)
        whole = file.read() if stat.S_ISREG(found.st_mode) and is_ours(found) else b""
    data = whole[CODE:]
    if hmac.compare_digest(whole[:CODE], code_of(path, key, data)):
        return data
    discard(path)
    return None


def write(path: Path, key: bytes, data: bytes) -> None:
    with replace_file(path, flushed=False, private=True) as beside:
        number = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), PRIVATE)
        with os.fdopen(number, "wb") as file:
            file.write(code_of(path, key, data) + data)


def code_of(path: Path, key: bytes, data: bytes) -> bytes:
    """Of the name too: code for one model is none for another."""
    return hmac.digest(key, path.name.encode() + b"\n" + data, "sha256")


def discard(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
