"""A federation as files, one per client, so that the nodes of a deployment can be given skewed data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedrecall.atomic_files import replace_file
from fedrecall.data.federation import Federation


def export_clients(federation: Federation, folder: Path) -> list[Path]:
    """`client-0007.npz` for each client, with its own samples and labels, and `test.npz` for everyone.

    The arrays are as they are stored: images uint8 (N, H, W, C). A held-out client's samples are all for training.
    """
    width = len(str(len(federation) - 1))
    written = []
    for client in range(len(federation)):
        arrays = arrays_of(federation, client)
        written.append(save(folder / f"client-{client:0{width}d}.npz", federation, arrays))
    if federation.test is not None:
        arrays = {"x_test": federation.test.x, "y_test": federation.test.y}
        written.append(save(folder / "test.npz", federation, arrays))
    return written


def arrays_of(federation: Federation, client: int) -> dict[str, np.ndarray]:
    """A client's own samples and labels."""
    train, validation = federation.train_indices(client), federation.validation_indices(client)
    x, y = federation.train.x, federation.train.y
    return {
        "x_train": x[train],
        "y_train": y[train],
        "x_validation": x[validation],
        "y_validation": y[validation],
    }


def save(path: Path, federation: Federation, arrays: dict[str, np.ndarray]) -> Path:
    with replace_file(path) as beside:
        np.savez_compressed(beside, **arrays, class_names=np.array(federation.class_names))  # type: ignore[arg-type]
    return path
