"""The folders that data sets are looked for in, and the errors when they are not there."""

from __future__ import annotations

import os
from pathlib import Path

from fedrecall.data.cache import cache_folder
from fedrecall.errors import InputError


def data_root(folder: str | Path | None = None) -> Path:
    """Return the folder above the data sets: the given one, FEDRECALL_DATA, or the default of `data fetch`."""
    given = folder or os.environ.get("FEDRECALL_DATA")
    return Path(given).expanduser() if given else cache_folder() / "data"


def data_folder(name: str, folder: str | Path | None, *unpacked: str, fetched: bool = False) -> Path:
    """Return the folder of a data set: the first of `unpacked` that exists below the root, else the root itself.

    `fetched`: whether errors propose `fedrecall data fetch`, which knows this data set.
    """
    root = data_root(folder)
    if not root.is_dir():
        given = folder or os.environ.get("FEDRECALL_DATA")
        problem = f"there is no folder {root}" if given else "no folder is given"
        advice = f"say with --data DIR or FEDRECALL_DATA where {unpacked[0]} is unpacked"
        raise InputError(f"{name}: {problem}; {fetch_advice(name) if fetched else ''}{advice}.")
    return next((root / below for below in unpacked if (root / below).is_dir()), root)


def require(path: Path, fetched: str = "") -> Path:
    """Return the path of a file that must exist. `fetched`: the name of its data set in `fedrecall data fetch`."""
    if not path.is_file():
        raise InputError(
            f"{path.name} is missing in {path.parent}; {fetch_advice(fetched) if fetched else ''}"
            "unpack the data set there, or name its folder with --data DIR or FEDRECALL_DATA."
        )
    return path


def fetch_advice(name: str) -> str:
    return f"download it with `fedrecall data fetch {name}`, or "
