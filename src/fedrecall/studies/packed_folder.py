"""A run's folder packed into one array of bytes, to send it between machines without a shared disk."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall.runs import files
from fedrecall.storage.atomic_files import explain_write_errors


def pack_folder(folder: Path) -> np.ndarray:
    """Return the packed folder without the lock, which belongs to its machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(folder.rglob("*")):
            if path != folder / files.LOCK:
                tar.add(path, str(path.relative_to(folder)), recursive=False)
    return np.frombuffer(buffer.getbuffer(), np.uint8)


def unpack_folder(packed: np.ndarray, folder: Path) -> None:
    """Replace the folder by the packed one."""
    safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4
    with replaced_folder(folder) as beside, tarfile.open(fileobj=io.BytesIO(packed.tobytes())) as tar:
        tar.extractall(beside, **safe)


@contextmanager
def replaced_folder(place: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `place`; rename it onto `place` on success, delete it on failure."""
    beside, before = (place.with_name(f"{place.name}.{end}") for end in ("part", "before"))
    try:
        with explain_write_errors(place):
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True)
            yield beside
            if place.exists():
                shutil.rmtree(before, ignore_errors=True)
                place.rename(before)
            beside.rename(place)
    finally:
        if before.exists() and not place.exists():  # interrupted between the two renames
            before.rename(place)
        for rest in (beside, before):
            shutil.rmtree(rest, ignore_errors=True)
