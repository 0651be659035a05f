"""What a data set is, wherever it comes from, and where its files are looked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrecall.data.transform import Images, Plain


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
