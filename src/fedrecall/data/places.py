"""Where data sets lie, and what to say where they do not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedrecall.atomic_files import explain_write_errors
from fedrecall.data.cache import cache_folder
from fedrecall.errors import InputError


def data_root(folder: str | Path | None = None) -> Path:
    """The folder above the data sets: the given one, FEDRECALL_DATA, or the place that `data fetch` fills."""
    given = folder or os.environ.get("FEDRECALL_DATA")
    return Path(given).expanduser() if given else cache_folder() / "data"


def data_folder(name: str, folder: str | Path | None, *unpacked: str, fetched: bool = False) -> Path:
    """Where a data set lies: in the first of `unpacked` that is a folder below the root, or in the root itself.

    `fetched` says that `fedrecall data fetch` knows this data set, which errors then propose.
    """
    root = data_root(folder)
    if not root.is_dir():
        given = folder or os.environ.get("FEDRECALL_DATA")
        problem = f"there is no folder {root}" if given else "no folder is given"
        advice = f"say with --data DIR or FEDRECALL_DATA where {unpacked[0]} is unpacked"
        raise InputError(f"{name}: {problem}; {fetch_advice(name) if fetched else ''}{advice}.")
    return next((root / below for below in unpacked if (root / below).is_dir()), root)


def require(path: Path, fetched: str = "") -> Path:
    """The file, if it is there; `fetched` is the data set's name for `fedrecall data fetch`."""
    if not path.is_file():
        raise InputError(
            f"{path.name} is missing in {path.parent}; {fetch_advice(fetched) if fetched else ''}"
            "unpack the data set there, or name its folder with --data DIR or FEDRECALL_DATA."
        )
    return path


def fetch_advice(name: str) -> str:
    return f"download it with `fedrecall data fetch {name}`, or "


@contextmanager
def npy_file(path: Path, shape: tuple[int, ...]) -> Iterator[BinaryIO]:
    """A `.npy` file of bytes of this shape, open for its content, which may come in pieces.

    Written, not mapped: on a full disk that is an error, where a map kills the process.
    """
    with explain_write_errors(path), path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        yield file
