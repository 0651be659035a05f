"""Messages between an engine and its workers, pickled through the pipe of a process or by Ray.

An exception is sent as text: its class may be defined in user code that the receiver cannot import.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedrecall.client.sums import Scalars
from fedrecall.client.tasks import Task
from fedrecall.engines.processes.shared_tensors import SharedTensors
from fedrecall.engines.ray.packing import Packed
from fedrecall.engines.task_chunks import ResultScalars

PackedStates = dict[tuple[int, int], Packed]  # clients' states, by client and version


# From the engine to a worker process. Workers on a cluster are called by Ray.


@dataclass(frozen=True)
class Publish:
    """Set the state that the following tasks start from or evaluate."""

    server: SharedTensors
    buffers: SharedTensors


@dataclass(frozen=True)
class RunTasks:
    """Run these tasks and put the vectors of their results into this slot."""

    tasks: Sequence[Task]
    slot: int


@dataclass(frozen=True)
class Shutdown:
    """End the process."""


# From a worker to the engine.


@dataclass(frozen=True)
class Ready:
    """The worker has started."""


@dataclass(frozen=True)
class NodeReady(Ready):
    """The worker has started on a node of a cluster."""

    node: str
    environment: dict[str, Any]
    has_states: bool  # whether it can read the run's folder


@dataclass(frozen=True)
class Done:
    """The results of a chunk, with their vectors in shared memory."""

    scalars: ResultScalars
    vectors: SharedTensors


@dataclass(frozen=True)
class StoredSum:
    """A node of the sum, whose vectors stay on the cluster."""

    scalars: Scalars
    dropped: list[int]  # for a leaf: `order` of the clients with non-finite values
    wire_bytes: int


@dataclass(frozen=True)
class NodeDone:
    """The results of a chunk that ran on a cluster."""

    scalars: ResultScalars
    vectors: Packed | None  # None: they stay on the cluster
    leaf: StoredSum | None  # their sum, if the chunk is a whole leaf
    states: PackedStates  # new states from a node that cannot write to the run's folder


@dataclass(frozen=True)
class Failed:
    """An exception in user code or in fedrecall; without a task, the worker could not start."""

    task: Task | None
    traceback: str


@dataclass(frozen=True)
class Refused:
    """The worker raised an `InputError`."""

    sentence: str


@dataclass(frozen=True)
class WriteFailed:
    """The worker raised a `WriteError`."""

    sentence: str


@dataclass(frozen=True)
class NeedsSamples:
    """The worker cannot start: its node has no access to the samples."""

    node: str


@dataclass(frozen=True)
class VectorsLost:
    """Vectors to be added up were lost with the node that stored them."""


Failure = Failed | Refused | WriteFailed
Computed = Done | NodeDone | StoredSum | VectorsLost  # the answer to a chunk that did not fail
Message = Ready | Computed | Failure
