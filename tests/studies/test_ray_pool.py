"""Studies whose runs are spread over a real Ray cluster, on this machine: the bits are those of a study without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedrecall.engines.ray.states import FolderToken

pytestmark = pytest.mark.heavy

TINY = ["demo", "model=mlp", "model.hidden=[8]", "local.steps=2", "evaluation.test_last=2", "evaluation.every=2"]
STUDY = [*TINY, "objective=cross_entropy,wsm", "rounds=2", "--seeds", "2", "--no-report", "--quiet"]
LONG = [*TINY, "algorithm=scaffold", "rounds=3000", "checkpoint.every=5", "--no-report", "--quiet"]
SAME = ("metrics.jsonl", "model.safetensors", "partition.npz", "clients.jsonl")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and two nodes, with room for one run each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        pytest.importorskip("ray", reason="ray is not installed")
        from ray.cluster_utils import Cluster

        own = {"num_cpus": 1, "object_store_memory": 2 * 10**8}
        made = Cluster(initialize_head=True, head_node_args={**own, "include_dashboard": False})
        try:
            made.add_node(**own)
            made.wait_for_nodes()
            yield made
        finally:
            made.shutdown()


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def on_ray(cluster: Any) -> list[str]:
    return ["--engine", "ray", "--ray-address", cluster.address]


def bits(study: str) -> dict[str, bytes]:
    """The table and what the runs came to."""
    paths = [Path(study, "table.csv"), *(path for name in SAME for path in Path(study).glob(f"runs/*/*/{name}"))]
    return {str(path.relative_to(study)): path.read_bytes() for path in paths}


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_a_study_on_a_cluster_has_the_bits_of_one_without(fedrecall: Any, on_ray: list[str]) -> None:
    there = fedrecall("sweep", *STUDY, *on_ray, "--out", "there")
    assert (there.code, there.err) == (0, "")
    here = fedrecall("sweep", *STUDY, "--engine", "serial", "--out", "here")
    assert here.code == 0
    assert len(bits("here")) > 4 * 2
    assert bits("there") == bits("here")
