"""The connection to a Ray cluster, or to a Ray that is started here, its resources and the errors about them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedrecall.errors import InputError
from fedrecall.recipe.settings import Execution

ANSWER = 10.0  # seconds for an address to answer
# Settings of a Ray that is started here: unreachable from the network, no usage reports.
OWN = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
# Bytes up to which an answer is sent inline (Ray's own limit is 100 kB). Larger ones go through the object store,
# which took half as much CPU time again for 1.5 MB, and a little less for 3.9 MB. On one machine, that time is
# taken from the workers.
WITH_MESSAGE = 2 * 2**20

Resources = Mapping[str, float]


def ray_module(*, alone: bool) -> Any:
    """Return the module `ray`; raise an `InputError` if it is not installed. `alone`: Ray will be started here."""
    for name, value in OWN.items() if alone else ():  # Ray reads them when it is imported
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise InputError(
            "the engine 'ray' needs Ray, which is not installed; install it with: pip install 'fedrecall[ray]'"
        ) from None
    return ray


class Cluster:
    """This process's connection to Ray; `close` ends it only if it was made here."""

    def __init__(self, address: str | None) -> None:
        self.ray = ray_module(alone=address is None)
        self.address = address
        self._ours = not self.ray.is_initialized()
        if self._ours:
            self._connect(address)

    def _connect(self, address: str | None) -> None:
        refuse_silent(address)
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            from fedrecall.engines.cpus import usable_cpus

            options |= {"address": "local", "num_cpus": usable_cpus(), "include_dashboard": False}
            options["_system_config"] = {"max_direct_call_object_size": WITH_MESSAGE}
        else:
            options["address"] = address
        try:
            with warnings.catch_warnings(), own_sigterm():
                warnings.simplefilter("ignore")  # Ray warns about its next release
                self.ray.init(**options)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            reason = " ".join(str(error).split())[:300]
            if address is None:
                raise InputError(f"Ray could not be started on this machine: {reason}") from None
            raise InputError(
                f"execution.ray_address is {address!r}, where no Ray cluster could be joined: {reason}"
            ) from None

    def nodes(self) -> list[Resources]:
        """Return the resources of each node that is alive."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def fits(self, asked: Resources) -> int:
        """Return how many workers the nodes have room for, ignoring other users of the cluster."""
        return sum(how_often(asked, node) for node in self.nodes())

    def refuse_too_little(self, asked: Resources, workers: int | None) -> int:
        """Return the number of workers, by default as many as fit; raise an `InputError` if too few fit."""
        room = self.fits(asked)
        if room < (workers or 1):
            who = (
                f"{workers} workers with {resources_text(asked)} each were"
                if workers
                else f"a worker with {resources_text(asked)} was"
            )
            raise InputError(
                f"{who} asked for (execution.workers, execution.resources), but the cluster has room for {room}: "
                f"{self.description()}"
            )
        return workers or room

    def description(self) -> str:
        """Return a description of the nodes and their resources."""
        nodes = self.nodes()
        each = "; ".join(resources_text(plain_resources(node)) for node in nodes)
        return f"{len(nodes)} node{'s' if len(nodes) != 1 else ''} ({each})" if nodes else "no nodes"

    def silence(self, asked: Resources, workers: int, seconds: float) -> InputError:
        """Return the error for a run in which no worker has started in time."""
        return InputError(
            f"no worker has begun within {seconds:.0f} s: {workers} with {resources_text(asked)} each were asked for, "
            f"and the cluster has {self.description()}; {self.free_in_words()} are free"
        )

    def actor(self, kind: type, asked: Resources, **more: Any) -> Any:
        """Create an actor on any node; it starts when these resources are free."""
        others = {name: share for name, share in asked.items() if name not in ("CPU", "GPU", "memory")}
        shares = {"num_cpus": asked.get("CPU", 0.0), "num_gpus": asked.get("GPU", 0.0), "resources": others}
        options = {**shares, "memory": asked.get("memory"), "scheduling_strategy": "SPREAD", **more}
        return self.ray.remote(kind).options(**options).remote()

    def actor_on(self, kind: type, node: str) -> Any:
        """Create an actor on the given node that reserves no resources."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node, soft=False)
        return self.ray.remote(kind).options(num_cpus=0, scheduling_strategy=place).remote()

    def free_in_words(self) -> str:
        """Return a description of the free resources."""
        return resources_text(plain_resources(self.ray.available_resources()))

    def own_node(self) -> str:
        """Return the id of the node that this process runs on."""
        node: str = self.ray.get_runtime_context().get_node_id()
        return node

    def close(self) -> None:
        if self._ours:
            with contextlib.suppress(Exception):  # the cluster may be gone
                self.ray.shutdown()


@contextmanager
def own_sigterm() -> Iterator[None]:
    """Restore the SIGTERM handler: Ray's own would end the process without a checkpoint."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def resources_of_worker(execution: Execution, threads: int, device: str) -> dict[str, float]:
    """Return the resources that a worker reserves on its node."""
    asked: dict[str, float] = {"CPU": float(threads)}
    if device == "cuda":
        asked["GPU"] = 1.0 / execution.workers_per_device
    asked |= execution.resources or {}
    if not any(asked.values()):
        raise InputError("execution.resources asks for nothing; some of CPU, GPU or a node's own was expected")
    return asked


def refuse_silent(address: str | None) -> None:
    """Raise an `InputError` if nothing answers at an address; Ray itself would try for a minute."""
    if address is None or address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if address.startswith("ray://") or not colon or not port.isdigit():
        raise InputError(
            f"execution.ray_address is {address!r}; HOST:PORT of the cluster's head was expected, or auto (a Ray "
            "Client address is not enough: start the command on a node of the cluster, or with `ray job submit`)"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"execution.ray_address is {address!r}, which does not answer "
            f"({getattr(error, 'strerror', None) or error}); the address of a running cluster was expected, which "
            "`ray status` shows on its head"
        ) from None


def how_often(asked: Resources, node: Resources) -> int:
    """Return how many workers with these resources fit on a node."""
    counts = [int(node.get(name, 0.0) / share + 1e-9) for name, share in asked.items() if share > 0]
    return min(counts, default=0)


def plain_resources(resources: Resources) -> Resources:
    """Return the resources without memory and Ray's labels of nodes."""
    own = ("node:", "object_store_memory", "memory", "accelerator_type:")
    return {name: amount for name, amount in resources.items() if not name.startswith(own)}


def resources_text(resources: Resources) -> str:
    """
    >>> resources_text({"CPU": 1.0, "GPU": 0.25})
    '1 CPU and 0.25 GPU'
    """
    return " and ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items())) or "nothing"
