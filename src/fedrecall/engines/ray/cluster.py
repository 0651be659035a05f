"""The connection to a Ray cluster, or to a Ray that is started here, its resources and the errors about them."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedrecall.engines.ray.address import check_address, listens
from fedrecall.engines.ray.last_words import LastWords
from fedrecall.errors import ClusterLostError, InputError
from fedrecall.recipe.settings import Execution

# Ray prints what it knows of a dead node on stdout, 25 lines of its log; the run's records say it in a sentence.
QUIET = {"RAY_DEDUP_LOGS_SKIP_REGEX": r"^(Raylet is terminated\.|The node with node id: )"}
# Settings of a Ray that is started here: unreachable from the network, no usage reports.
OWN = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
SLICE = 3.0  # seconds to wait for answers before the head is looked at
LOST = 30.0  # seconds without the head after which the cluster counts as gone; Ray ends the process after 60
# Bytes up to which an answer is sent inline (Ray's own limit is 100 kB). Larger ones go through the object store,
# which took half as much CPU time again for 1.5 MB, and a little less for 3.9 MB. On one machine, that time is
# taken from the workers.
WITH_MESSAGE = 2 * 2**20

Resources = Mapping[str, float]


def ray_module(*, alone: bool) -> Any:
    """Return the module `ray`; raise an `InputError` if it is not installed. `alone`: Ray will be started here."""
    for name, value in {**QUIET, **(OWN if alone else {})}.items():  # Ray reads them when it is imported
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise InputError(
            "the engine 'ray' needs Ray, which is not installed; install it with: pip install 'fedrecall[ray]'"
        ) from None
    return ray


ENDED = "this process was ended by Ray, which has lost its node on this machine, or killed from outside"


class Cluster:
    """This process's connection to Ray; `close` ends it only if it was made here."""

    def __init__(self, address: str | None, *, after: str = "") -> None:
        """Connect; `after` is the end of the sentence if Ray ends this process: how to resume."""
        self.ray = ray_module(alone=address is None)
        self.address, self.lost = address, False
        self._silent_since: float | None = None  # monotonic time of the first failed look at the head
        self._ours = not self.ray.is_initialized()
        self._last_words: LastWords | None = None
        if self._ours:
            self._connect(address)
            self._last_words = LastWords(f"{ENDED}{after}")
        self._head: str = self.ray.get_runtime_context().gcs_address

    def _connect(self, address: str | None) -> None:
        check_address(address)
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

    def wait(self, answers: Sequence[Any], seconds: float | None) -> list[Any]:
        """Return the answers that are there once there is one, or after `seconds`."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            left = max(0.0, min(SLICE, end - time.monotonic()))
            with self.noting_loss():
                there, _ = self.ray.wait(list(answers), num_returns=1, timeout=left)
                if there:  # also take all others that have arrived
                    there, _ = self.ray.wait(list(answers), num_returns=len(answers), timeout=0)
                    return list(there)
            self._head_listens()
            if time.monotonic() >= end:
                return []

    def get(self, reference: Any) -> Any:
        """Return an object from the cluster."""
        with self.noting_loss():
            return self.ray.get(reference)

    def put(self, value: Any) -> Any:
        """Put an object on the cluster; return the reference to it."""
        with self.noting_loss():
            return self.ray.put(value)

    @contextmanager
    def noting_loss(self) -> Iterator[None]:
        """Raise a `ClusterLostError` in place of the error of a broken connection to the node of this process."""
        try:
            yield
        except OSError as error:
            if isinstance(error, self.ray.exceptions.RayError):  # such an error of a worker
                raise
            self._ours = False  # without its node, Ray would end this process at the attempt to leave the cluster
            raise self._lost("its node on this machine has ended") from None

    def wait_for_head(self) -> None:
        """Wait until the head listens, before a call in which Ray would wait for it and then end this process."""
        while not self._head_listens():
            time.sleep(1.0)

    def _head_listens(self) -> bool:
        """Return whether the head listens; raise a `ClusterLostError` if it has not for a while."""
        if listens(self._head):
            self._silent_since = None
            return True
        self._silent_since = self._silent_since or time.monotonic()
        if time.monotonic() - self._silent_since > LOST:
            raise self._lost(f"its head has not answered for {LOST:.0f} s")
        return False

    def _lost(self, how: str) -> ClusterLostError:
        self.lost = True
        where = f"at {self.address!r} " if self.address else ""
        return ClusterLostError(f"the Ray cluster {where}is gone: {how}")

    def nodes(self) -> list[Resources]:
        """Return the resources of each node that is alive."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def gone(self, nodes: Collection[str]) -> set[str]:
        """Return which of these nodes do not answer; Ray itself counts a lost node as alive for half a minute."""
        known = {node["NodeID"]: node for node in self.ray.nodes() if node["Alive"]}
        places = {node: f"{known[node]['NodeManagerAddress']}:{known[node]['NodeManagerPort']}" for node in known}
        return {node for node in nodes if node not in known or not listens(places[node])}

    def host_of(self, node: str) -> str:
        """Return the address of a node, alive or not; empty if it is not known."""
        return next((each["NodeManagerAddress"] for each in self.ray.nodes() if each["NodeID"] == node), "")

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
        if self._last_words:
            self._last_words.close()
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
