"""Decoded arrays on disk, so that a data set is decoded once and then mapped into memory.

The folder is FEDRECALL_CACHE, or the user's cache folder. An entry stands for the files it was decoded from: when
one of them changes in size or time, it is made again. So is one that is not as it was written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from fedrecall.atomic_files import write_error, write_text
from fedrecall.errors import InputError, Note
from fedrecall.safe_parsing import json_value, reason_of, regular_file
from fedrecall.scratch import ScratchFolder

VERSION = 1  # of what is cached; raise it when a reader decodes differently
MANIFEST = "manifest.json"  # the files of an entry, with their sizes and checksums
PIECE = 2**22


def cache_folder() -> Path:
    if given := os.environ.get("FEDRECALL_CACHE"):
        return Path(given)
    return user_cache_path("fedrecall", appauthor=False, opinion=False)


def cached_arrays(name: str, files: Sequence[Path], decode: Callable[[Path], None]) -> dict[str, np.ndarray]:
    """The arrays that `decode(folder)` makes of these files by writing `.npy` files, as read-only maps.

    A failed decoding leaves nothing behind. Two processes may decode at once: the first one done is kept. An entry
    that is not as it was written is made again, with a note.
    """
    entry = cache_folder() / f"{name}-{fingerprint(files)}"
    if os.path.lexists(entry):
        try:
            return checked_arrays(entry)
        except InputError as error:
            warnings.warn(f"the cached data {str(entry)!r} are made again: {error}", Note, stacklevel=2)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        beside = ScratchFolder(name, entry.parent)
    except OSError as error:
        raise InputError(
            f"the cache folder {str(entry.parent)!r} cannot be written: "
            f"{error.strerror}; name another in FEDRECALL_CACHE"
        ) from None
    with beside:
        try:
            made = beside.path / "entry"
            made.mkdir()
            decode(made)
            write_manifest(made)
            return put_in_place(made, entry)
        except OSError as error:
            raise write_error(entry, error) from None


def put_in_place(made: Path, entry: Path) -> dict[str, np.ndarray]:
    """The arrays of the entry, which is this new folder, unless another process put a good one there sooner."""
    if os.path.lexists(entry):
        with contextlib.suppress(InputError):
            return checked_arrays(entry)
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    with contextlib.suppress(OSError):  # there is one now, or it cannot be written, which is seen next
        made.replace(entry)
    try:
        return checked_arrays(entry)
    except InputError as error:
        raise InputError(f"the cached data {str(entry)!r} cannot be read back: {error}") from None


def write_manifest(folder: Path) -> None:
    """Last, so that an entry with a manifest is whole."""
    facts = {path.name: facts_of(path) for path in sorted(folder.glob("*.npy"))}
    write_text(folder / MANIFEST, json.dumps({"files": facts}, indent=2) + "\n")


def checked_arrays(entry: Path) -> dict[str, np.ndarray]:
    """The arrays of an entry as read-only maps; an `InputError` says in what it is not as it was written.

    All of it is read, a third of a second a gigabyte, and from the disk what is not in memory yet.
    """
    try:
        manifest = json_value(regular_file(entry / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"its {MANIFEST} cannot be read ({reason_of(error)})") from None
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict):
        raise InputError(f"its {MANIFEST} is damaged")
    found = {}
    for name, facts in files.items():
        path = entry / Path(name).name
        try:
            if facts_of(regular_file(path)) != facts:
                raise InputError("it is not as it was written")
            found[path.stem] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"its {path.name} is damaged ({reason_of(error)})") from None
    return found


def facts_of(path: Path) -> dict[str, int]:
    """The size and the checksum of a file: CRC-32, because it is against accidents and three times as fast as a
    hash that is against people."""
    size = checksum = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            size, checksum = size + len(piece), zlib.crc32(piece, checksum)
    return {"bytes": size, "crc32": checksum}


def fingerprint(files: Sequence[Path]) -> str:
    """Changes when a file is moved, replaced or touched."""
    facts = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr((VERSION, facts)).encode()).hexdigest()[:16]
