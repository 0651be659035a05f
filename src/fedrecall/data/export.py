"""Export a federation as one file per client, for the nodes of a deployment."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedrecall.data.federation import Federation
from fedrecall.storage.atomic_files import replace_file


def export_clients(federation: Federation, folder: Path) -> list[Path]:
    """Write `client-0007.npz` and so on with each client's samples and labels, and `test.npz`; return the paths.

    The arrays are written as they are stored, images as uint8 (N, H, W, C). All samples of held-out clients are
    training samples.
    """
    width = len(str(len(federation) - 1))
    written = []
    for client in range(len(federation)):
        arrays = arrays_of(federation, client)
        written.append(save_client(folder / f"client-{client:0{width}d}.npz", federation, arrays))
    if federation.test is not None:
        arrays = {"x_test": federation.test.x, "y_test": federation.test.y}
        written.append(save_client(folder / "test.npz", federation, arrays))
    return written


def arrays_of(federation: Federation, client: int) -> dict[str, np.ndarray]:
    train, validation = federation.train_indices(client), federation.validation_indices(client)
    x, y = federation.train.x, federation.train.y
    rows = {"x_train": x[train], "y_train": y[train]}
    return {**rows, "x_validation": x[validation], "y_validation": y[validation]}


def save_client(path: Path, federation: Federation, arrays: dict[str, np.ndarray]) -> Path:
    with replace_file(path) as temporary:
        np.savez_compressed(temporary, **arrays, class_names=np.array(federation.class_names))  # type: ignore[arg-type]
    return path
