"""A real Ray cluster on this machine, for tests: a head and two nodes, with a CPU each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

# Before Ray is imported: nothing listens but on 127.0.0.1, and nobody is told that it is used.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
MEMORY = 2 * 10**8  # bytes of a node's object store


def start(nodes: int = 2, **head: Any) -> Any:
    """The cluster; its head has a CPU too."""
    pytest.importorskip("ray", reason="needs fedrecall[ray]")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": MEMORY, **head})
    for _ in range(nodes):
        add_node(cluster)
    return cluster


def add_node(cluster: Any, **options: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=MEMORY, **options)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    started = start()
    yield started
    started.shutdown()
