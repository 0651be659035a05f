"""Samples and labels in memory-mapped files, from which batches are gathered.

The files are plain `.npy`. All processes of a run map the same pages, so the data is in memory once.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedrecall.storage.atomic_files import explain_write_errors

PIECE = 2**22  # bytes that are digested at a time
MOST_DIGESTED = 2**30  # bytes
POPULATE_READ = 22  # MADV_POPULATE_READ in Linux's mman.h; Python has no name for it


class Samples:
    """`x` of any shape and dtype, and integer labels `y`, one per sample."""

    def __init__(self, x_path: Path, y_path: Path) -> None:
        self.x_path, self.y_path = x_path, y_path
        # Copy-on-write, because torch wants writable memory; nothing is ever written to it.
        self.x: np.ndarray = np.load(x_path, mmap_mode="c", allow_pickle=False)
        self.y: np.ndarray = np.load(y_path, mmap_mode="c", allow_pickle=False)
        self._rows = torch.from_numpy(self.x)
        self._labels = torch.from_numpy(self.y)

    def __reduce__(self) -> tuple[type[Samples], tuple[Path, Path]]:
        return Samples, (self.x_path, self.y_path)

    def __len__(self) -> int:
        return len(self.y)

    def map_pages(self) -> None:
        """Map all pages at once, which takes a tenth of a second per gigabyte.

        Otherwise each page costs a fault when it is first read: a fifth of the time of a round with a small model
        and new clients in every round.
        """
        if sys.platform == "linux" and isinstance(self.x.base, mmap.mmap):
            memory = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
            if self.x.nbytes < memory / 4:  # a larger file may not stay in memory
                with contextlib.suppress(OSError):  # before Linux 5.14
                    self.x.base.madvise(POPULATE_READ)

    @property
    def files(self) -> tuple[Path, Path]:
        return self.x_path, self.y_path

    def add_to(self, digest: hashlib._Hash) -> None:
        """Add the labels and the samples to a digest; of more than a gigabyte, evenly spread pieces."""
        digest.update(repr((self.x.shape, self.x.dtype.str)).encode())
        digest.update(np.ascontiguousarray(self.y).data)
        size = max(1, PIECE // max(1, self.x[0].nbytes)) if len(self.x) else 1
        step = size * max(1, -(-self.x.nbytes // MOST_DIGESTED))
        for start in range(0, len(self.x), step):
            digest.update(np.ascontiguousarray(self.x[start : start + size]).data)

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return a batch as it is stored, and its labels: always copies, so that their alignment is the same."""
        return torch.index_select(self._rows, 0, indices), torch.index_select(self._labels, 0, indices)

    def whole(self) -> tuple[Tensor, Tensor]:
        """Return all samples as they are stored, and their labels, without a copy."""
        return self._rows, self._labels

    @classmethod
    def write(cls, folder: Path, name: str, x: np.ndarray, y: np.ndarray) -> Samples:
        """Write both arrays below `folder`. An array that maps a whole `.npy` file is used without a copy."""
        x_path = mapped_file(x)
        if x_path is None:
            x_path = folder / f"{name}_x.npy"
            with explain_write_errors(x_path):
                np.save(x_path, x.astype(x.dtype.newbyteorder("="), copy=False), allow_pickle=False)
        y_path = folder / f"{name}_y.npy"
        with explain_write_errors(y_path):
            np.save(y_path, np.asarray(y, dtype=np.int64), allow_pickle=False)
        return cls(x_path, y_path)


def mapped_file(x: np.ndarray) -> Path | None:
    """Return the `.npy` file that this array maps as a whole and read-only, or None."""
    if not isinstance(x, np.memmap) or x.mode != "r" or x.filename is None or not x.dtype.isnative:
        return None
    try:
        whole = np.load(x.filename, mmap_mode="r", allow_pickle=False)
    except ValueError:  # mapped without a header
        return None
    same = whole.shape == x.shape and whole.dtype == x.dtype and whole.strides == x.strides
    return Path(x.filename) if same and x.offset == whole.offset else None
