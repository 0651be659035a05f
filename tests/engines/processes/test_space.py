"""What the engine takes of files and temporary space: in proportion to its workers, whatever they do."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedrecall import Federation, Scaffold, federate

INPUTS, CLASSES = 4000, 4
VECTOR = 4 * (INPUTS + 1) * CLASSES  # bytes of the model


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks for mapped files in /proc")
@pytest.mark.parametrize("workers", [3, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("warm_workers")
def test_files_and_bytes_are_in_proportion_to_the_workers(workers, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    random = np.random.default_rng(0)
    clients = [(random.normal(size=(8, INPUTS)).astype(np.float32), random.integers(0, CLASSES, 8)) for _ in range(60)]
    federation = Federation.from_clients(clients, num_classes=CLASSES, validation=0.25)
    seen = []

    def watch(line: dict) -> None:
        (folder,) = tmp_path.glob("fedrecall-engine-*")
        mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]
        seen.append((len(mapped), sum(path.stat().st_size for path in folder.iterdir())))

    federate(
        nn.Linear(INPUTS, CLASSES), federation, algorithm=Scaffold(), rounds=10, participation=1.0, watch=watch,
        engine="processes", workers=workers, out=tmp_path / "run", evaluation={"every": 3},
        forgetting={"every": 3}, local={"epochs": 1, "batch_size": 4, "lr": 0.01},
    )  # fmt: skip
    chunk = 60 // (4 * workers)  # clients; each sends its model and the change of its control variate
    files, most = max(count for count, _ in seen), max(size for _, size in seen)
    assert len(seen) == 10
    assert files <= 2 * workers + 2  # and what is published: vectors and buffers
    assert most <= 2 * workers * chunk * 2 * (VECTOR + 64) + 2 * (VECTOR + 64) + 4096
