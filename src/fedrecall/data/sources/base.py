"""The data set that every reader returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrecall.data.transform import Transform


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples, labels, and the transform of a batch of samples to a model's input. Images are uint8 (N, H, W, C).

    Arrays that are read-only memory maps of `.npy` files are used without a copy.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray  # int64
    x_test: np.ndarray
    y_test: np.ndarray
    num_classes: int
    class_names: tuple[str, ...]
    transform: Transform
    ids: np.ndarray | None = None  # the client id of each training sample, for the partition `natural`
    id_names: np.ndarray | None = None  # the names of the ids 0, 1, ..; without them, ids of text are names
