"""Decoded arrays on disk, so that a data set is decoded once and then mapped into memory.

The folder is FEDRECALL_CACHE, or the user's cache folder. The name of an entry depends on the size and time of the
files it was decoded from, so a changed file is decoded again. A damaged entry is decoded again, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.lib import format as npy
from platformdirs import user_cache_path

from fedrecall.errors import InputError, Note
from fedrecall.storage.atomic_files import explain_write_errors, write_error, write_text
from fedrecall.storage.safe_parsing import json_value, reason_of, regular_file
from fedrecall.storage.scratch import ScratchFolder

VERSION = 1  # of the cached arrays; raise it when a reader decodes differently
MANIFEST = "manifest.json"  # the files of an entry, with their sizes and checksums
PIECE = 2**22  # bytes that are read at a time


def cache_folder() -> Path:
    """Return FEDRECALL_CACHE, or the folder that the system has for a user's caches."""
    if given := os.environ.get("FEDRECALL_CACHE"):
        return Path(given)
    return user_cache_path("fedrecall", appauthor=False, opinion=False)


def cached_arrays(name: str, files: Sequence[Path], decode: Callable[[Path], None]) -> dict[str, np.ndarray]:
    """Return the arrays that `decode(folder)` writes as `.npy` files, as read-only maps.

    A failed decoding leaves nothing behind. If two processes decode at once, the first result is kept. A damaged
    entry is decoded again, with a note.
    """
    entry = cache_folder() / f"{name}-{fingerprint(files)}"
    if os.path.lexists(entry):
        try:
            return checked_arrays(entry)
        except InputError as error:
            warnings.warn(f"the cached data {str(entry)!r} are made again: {error}", Note, stacklevel=2)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        scratch = ScratchFolder(name, entry.parent)
    except OSError as error:
        raise InputError(
            f"the cache folder {str(entry.parent)!r} cannot be written: "
            f"{error.strerror}; name another in FEDRECALL_CACHE"
        ) from None
    with scratch:
        try:
            made = scratch.path / "entry"
            made.mkdir()
            decode(made)
            write_manifest(made)
            return install_entry(made, entry)
        except OSError as error:
            raise write_error(entry, error) from None


def install_entry(made: Path, entry: Path) -> dict[str, np.ndarray]:
    """Move a new folder to its place, unless another process was first, and return the arrays of the entry."""
    if os.path.lexists(entry):
        with contextlib.suppress(InputError):
            return checked_arrays(entry)
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    with contextlib.suppress(OSError):  # another process was first, or the next check says what is wrong
        made.replace(entry)
    try:
        return checked_arrays(entry)
    except InputError as error:
        raise InputError(f"the cached data {str(entry)!r} cannot be read back: {error}") from None


def write_manifest(folder: Path) -> None:
    """Write the manifest, as the last file, so that an entry with a manifest is complete."""
    facts = {path.name: size_and_checksum(path) for path in sorted(folder.glob("*.npy"))}
    write_text(folder / MANIFEST, json.dumps({"files": facts}, indent=2) + "\n")


def checked_arrays(entry: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an entry as read-only maps, or raise an `InputError` that names the damaged file.

    Every file is read for its checksum, which takes a third of a second per gigabyte.
    """
    try:
        manifest = json_value(regular_file(entry / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"its {MANIFEST} cannot be read ({reason_of(error)})") from None
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict):
        raise InputError(f"its {MANIFEST} is damaged")
    arrays = {}
    for name, facts in files.items():
        path = entry / Path(name).name
        try:
            if size_and_checksum(regular_file(path)) != facts:
                raise InputError("it is not as it was written")
            arrays[path.stem] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"its {path.name} is damaged ({reason_of(error)})") from None
    return arrays


def size_and_checksum(path: Path) -> dict[str, int]:
    """Return the size and CRC-32 of a file.

    The checksum detects accidents, not attacks, and is three times as fast as a cryptographic hash.
    """
    size = checksum = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            size, checksum = size + len(piece), zlib.crc32(piece, checksum)
    return {"bytes": size, "crc32": checksum}


def fingerprint(files: Sequence[Path]) -> str:
    """Return a hash that changes when a file is moved, replaced or touched."""
    facts = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr((VERSION, facts)).encode()).hexdigest()[:16]


def write_rows(path: Path, count: int, pieces: Iterable[np.ndarray]) -> None:
    """Write pieces that have `count` rows in all as one `.npy` file.

    The file is written, not mapped, because a full disk is then an error instead of a fatal signal.
    """
    # Without a buffer: a full disk would refuse it when the file is closed, outside of `explain_write_errors`.
    with path.open("wb", buffering=0) as file:
        for number, piece in enumerate(pieces):
            content = np.ascontiguousarray(piece).tobytes()
            if number == 0:
                shape, header = (count, *piece.shape[1:]), io.BytesIO()
                descr = npy.dtype_to_descr(piece.dtype)
                npy.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
                content = header.getvalue() + content
            with explain_write_errors(path):
                left = memoryview(content)
                while left:
                    left = left[file.write(left) :]
