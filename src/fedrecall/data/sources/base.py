"""What a data set is, wherever it comes from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrecall.data.transform import Images, Plain
from fedrecall.errors import InputError


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples, labels, and how a batch of samples becomes a model's input. Images are uint8 (N, H, W, C).

    The arrays may be read-only memory maps of `.npy` files: they are then used where they lie.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray  # int64
    x_test: np.ndarray
    y_test: np.ndarray
    num_classes: int
    class_names: tuple[str, ...]
    transform: Images | Plain
    ids: np.ndarray | None = None  # the natural client of each training sample


def data_folder(name: str, folder: str | Path | None, unpacked: str) -> Path:
    """Where a data set lies: `unpacked` below the given folder (or FEDRECALL_DATA), or that folder itself."""
    advice = f"say with --data DIR or FEDRECALL_DATA where {unpacked} is unpacked."
    given = folder or os.environ.get("FEDRECALL_DATA")
    if not given:
        raise InputError(f"{name}: no folder is given; {advice}")
    root = Path(given).expanduser()
    if not root.is_dir():
        raise InputError(f"{name}: there is no folder {root}; {advice}")
    return root / unpacked if (root / unpacked).is_dir() else root


def require(path: Path) -> Path:
    """The file, if it is there."""
    if not path.is_file():
        raise InputError(
            f"{path.name} is missing in {path.parent}; unpack the data set there, "
            "or name its folder with --data DIR or FEDRECALL_DATA."
        )
    return path
