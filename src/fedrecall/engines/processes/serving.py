"""The main loop of a worker process of the `processes` engine."""

from __future__ import annotations

from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from fedrecall.backend.device import Device
from fedrecall.client.worker import Worker
from fedrecall.data.federation import Federation
from fedrecall.engines.messages import Done, Failure, Publish, Ready, Refused, RunTasks, Shutdown, WriteFailed
from fedrecall.engines.processes.connection import receive
from fedrecall.engines.processes.shared_tensors import SharedTensorReader, SharedTensorWriter
from fedrecall.engines.task_chunks import SLOTS, stack_results
from fedrecall.engines.task_runner import failure_of, make_worker, run_tasks
from fedrecall.errors import InputError, WriteError


def run_worker(connection: Connection, setup: bytes, folder: str, name: str, device: dict[str, Any]) -> None:
    """Make a worker from the engine's setup, report that it is ready, and run its main loop."""
    try:
        # Trusted: sent by the engine that started this process, over a private connection.
        job, handle, states = cloudpickle.loads(setup)
        worker = make_worker(job, partial(Federation.from_handle, handle), states, Device(**device))
    except Exception as error:
        connection.send(failure_of(error))
        return
    connection.send(Ready())
    serve_tasks(connection, worker, Path(folder), name)


def serve_tasks(connection: Connection, worker: Worker, folder: Path, name: str) -> None:
    reader = SharedTensorReader(folder)
    slots = [SharedTensorWriter(folder, f"{name}-{number}") for number in range(SLOTS)]
    refused: Refused | None = None  # the answer to all tasks if the published state was refused
    while True:
        message: Publish | RunTasks | Shutdown = receive(connection)
        match message:
            case Shutdown():
                return
            case Publish():
                refused = publish_state(worker, reader, message) or refused
            case RunTasks():
                connection.send(refused or run_into_slot(worker, message, slots[message.slot]))


def publish_state(worker: Worker, reader: SharedTensorReader, message: Publish) -> Refused | None:
    """Give copies of the published tensors to the worker."""
    shared = (message.server, message.buffers)
    server, buffers = ({name: t.clone() for name, t in reader.read(each).items()} for each in shared)
    try:
        worker.publish(server, buffers)
    except InputError as error:
        return Refused(str(error))
    return None


def run_into_slot(worker: Worker, message: RunTasks, slot: SharedTensorWriter) -> Done | Failure:
    """Run tasks and write the vectors of their results into the slot."""
    results = run_tasks(worker, message.tasks)
    if not isinstance(results, list):
        return results
    scalars, stacks = stack_results(results)
    try:
        return Done(scalars, slot.write(stacks))
    except WriteError as error:
        return WriteFailed(str(error))
