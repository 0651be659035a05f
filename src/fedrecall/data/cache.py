"""Decoded arrays on disk, so that a data set is decoded once and then mapped into memory.

The folder is FEDRECALL_CACHE, or the user's cache folder. An entry stands for the files it was decoded from: when
one of them changes in size or time, it is made again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from fedrecall.atomic_files import write_error
from fedrecall.errors import InputError

VERSION = 1  # of what is cached; raise it when a reader decodes differently


def cache_folder() -> Path:
    if given := os.environ.get("FEDRECALL_CACHE"):
        return Path(given)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "fedrecall"


def cached_arrays(name: str, files: Sequence[Path], decode: Callable[[Path], None]) -> dict[str, np.ndarray]:
    """The arrays that `decode(folder)` makes of these files by writing `.npy` files, as read-only maps.

    A failed decoding leaves nothing behind. Two processes may decode at once: the first one done is kept.
    """
    entry = cache_folder() / f"{name}-{fingerprint(files)}"
    if not entry.is_dir():
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            beside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=entry.parent))
        except OSError as error:
            raise InputError(
                f"the cache folder {str(entry.parent)!r} cannot be written: "
                f"{error.strerror}; name another in FEDRECALL_CACHE"
            ) from None
        try:
            decode(beside)
            beside.replace(entry)
        except OSError as error:
            if not entry.is_dir():
                raise write_error(entry, error) from None
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in entry.glob("*.npy")}


def fingerprint(files: Sequence[Path]) -> str:
    """Changes when a file is moved, replaced or touched."""
    facts = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr((VERSION, facts)).encode()).hexdigest()[:16]
