"""The disk cache of compiled kernels: half a second to compile, a few milliseconds to load.

Cached code is executed, so the folder and its files must belong to this user alone. A checksum detects files that
a full disk or a power cut damaged. Without such a folder nothing is cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from fedrecall.data.cache import cache_folder
from fedrecall.errors import InputError
from fedrecall.storage.atomic_files import PRIVATE, is_only_ours, replace_file

CHECKSUM = hashlib.sha256().digest_size


def cached_object(name: str, compile: Callable[[], bytes]) -> bytes:
    """Return the object code cached as `name`, a digest of all its inputs; compile it if missing."""
    try:
        folder = own_folder()
    except (InputError, OSError, RuntimeError):  # no home folder, a folder of others, or a full disk
        return compile()
    path = folder / f"{name}.o"
    data = read_object(path)
    if data is None:
        data = compile()
        with contextlib.suppress(InputError, OSError):
            write_object(path, data)
    return data


def own_folder() -> Path:
    """Return the cache folder; raise `InputError` unless it is this user's alone."""
    folder = cache_folder() / "lanes"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not (stat.S_ISDIR(found.st_mode) and is_only_ours(found)):
        raise InputError(f"the folder {str(folder)!r} is open to others")
    return folder


def read_object(path: Path) -> bytes | None:
    """Return the object code in a file; None if it is missing, not ours or damaged."""
    try:
        found = path.lstat()
        whole = path.read_bytes() if stat.S_ISREG(found.st_mode) and is_only_ours(found) else b""
    except OSError:
        return None
    data = whole[CHECKSUM:]
    return data if whole[:CHECKSUM] == checksum_of(path, data) else None


def write_object(path: Path, data: bytes) -> None:
    with replace_file(path, flushed=False) as beside:
        number = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), PRIVATE)
        with os.fdopen(number, "wb") as file:
            file.write(checksum_of(path, data) + data)


def checksum_of(path: Path, data: bytes) -> bytes:
    """Return the checksum of a file's name and content, so that a renamed file is invalid."""
    return hashlib.sha256(path.name.encode() + b"\n" + data).digest()
