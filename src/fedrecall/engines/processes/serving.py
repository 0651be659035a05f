"""What a worker process does once it has begun: it publishes and runs what it is told. Vectors come and go through
boxes."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from fedrecall.client.work import Task
from fedrecall.client.worker import Worker
from fedrecall.device import Device
from fedrecall.engines.malloc import keep_freed_memory
from fedrecall.engines.parcels import BOXES, stacked
from fedrecall.engines.processes.connection import receive
from fedrecall.engines.processes.shared_tensors import Box, Boxes
from fedrecall.errors import InputError, WriteError
from fedrecall.torch_state import Fixed, fix
from fedrecall.user_code import their_traceback


def begin(connection: Connection, setup: bytes, folder: str, name: str, device: dict[str, Any]) -> None:
    """Make a worker of what the engine has sent, say so, and serve."""
    keep_freed_memory()
    try:
        # From the engine that started this process, over a connection that only the two of them have.
        job, handle, states = cloudpickle.loads(setup)
        fix(Fixed())  # for good, and after the import of code that may have set something
        torch.set_num_threads(job.local.threads)
        place = Device(**device)
        place.fix()
        with place.explained(job.local.batch_size):
            worker = Worker(job, handle.open(), states, place)
    except InputError as error:
        connection.send(("refused", None, str(error)))
        return
    except Exception as error:
        connection.send(("failed", None, their_traceback(error)))
        return
    connection.send(("ready", None, None))
    serve(connection, worker, Path(folder), name)


def serve(connection: Connection, worker: Worker, folder: Path, name: str) -> None:
    boxes, results = Boxes(folder), [Box(folder, f"{name}-{number}") for number in range(BOXES)]
    refused: str | None = None  # why what was published could not be taken: said when there are tasks
    while True:
        kind, *rest = receive(connection)
        if kind == "stop":
            return
        if kind == "publish":
            server, buffers = ({key: t.clone() for key, t in boxes.take(header).items()} for header in rest)
            try:
                worker.publish(server, buffers)
            except InputError as error:
                refused = str(error)
        else:
            tasks, box = rest
            connection.send(("refused", None, refused) if refused else answer(worker, tasks, results[box]))


def answer(worker: Worker, tasks: list[Task], box: Box) -> tuple[object, ...]:
    """The results of a parcel; their vectors are left in the box."""
    results = []
    for task in tasks:
        try:
            results.append(worker.run(task))
        except WriteError as error:
            return "unwritten", task, str(error)
        except InputError as error:
            return "refused", task, str(error)
        except Exception as error:
            return "failed", task, their_traceback(error)
    try:
        rest, stacks = stacked(results)
        return "done", None, (rest, box.put(stacks))
    except WriteError as error:
        return "unwritten", None, str(error)
