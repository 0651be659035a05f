"""The embedded data set: a part of Fashion-MNIST."""

from __future__ import annotations

from importlib import resources

import numpy as np

from fedrecall.config.titles import titled
from fedrecall.data.files.idx import FASHION_CLASSES
from fedrecall.data.sources.base import DataSet
from fedrecall.data.transform import Images


@titled("Fashion-MNIST (10,000 images)")
def fashion_mini() -> DataSet:
    """Fashion-MNIST, the first 1000 training and 200 test images of each class, shipped with us."""
    file = resources.files("fedrecall") / "data" / "fashion_mini.npz"
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        return DataSet(
            name="fashion_mini",
            x_train=arrays["x_train"][..., None],
            y_train=arrays["y_train"].astype(np.int64),
            x_test=arrays["x_test"][..., None],
            y_test=arrays["y_test"].astype(np.int64),
            num_classes=10,
            class_names=FASHION_CLASSES,
            transform=Images(mean=(0.2867,), std=(0.3540,)),
        )
