"""Make fashion-tail.npz and fashion-tail-balanced.npz: fashion_mini with classes that become ever rarer.

    python tools/make_long_tail.py FOLDER [FACTOR]

Of class c, the first n_max * FACTOR^(-c / 9) training images are kept (FACTOR: 10). The test set has the same
tail in the first file and all images in the second. For `data: {name: npz, path: FOLDER/fashion-tail.npz}`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from fedrecall.data.sources.fashion_mini import fashion_mini


def tail(labels: np.ndarray, factor: float) -> np.ndarray:
    """Where the samples are that are kept, in the order of the data set."""
    counts = np.bincount(labels)
    wanted = [round(counts.max() * factor ** (-c / (len(counts) - 1))) for c in range(len(counts))]
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:n] for c, n in enumerate(wanted)]))


def main() -> None:
    folder, factor = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
    folder.mkdir(parents=True, exist_ok=True)
    data = fashion_mini()
    kept, tested = tail(data.y_train, factor), tail(data.y_test, factor)
    names = np.array(data.class_names)
    train = {"x_train": data.x_train[kept], "y_train": data.y_train[kept], "class_names": names}
    for name, test in (("fashion-tail", tested), ("fashion-tail-balanced", np.arange(len(data.y_test)))):
        path = folder / f"{name}.npz"
        np.savez_compressed(path, **train, x_test=data.x_test[test], y_test=data.y_test[test])
        print(f"{path}: {len(kept)} training and {len(test)} test images")


if __name__ == "__main__":
    main()
