"""What a worker process does once it has begun: it publishes and runs what it is told. Vectors come and go through
boxes."""

from __future__ import annotations

from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from fedrecall.client.worker import Worker
from fedrecall.data.federation import Federation
from fedrecall.device import Device
from fedrecall.engines.answering import answer, make_worker, refusal
from fedrecall.engines.parcels import BOXES, Answer, Rest, stacked
from fedrecall.engines.processes.connection import receive
from fedrecall.engines.processes.shared_tensors import Box, Boxes, Header
from fedrecall.errors import InputError


def begin(connection: Connection, setup: bytes, folder: str, name: str, device: dict[str, Any]) -> None:
    """Make a worker of what the engine has sent, say so, and serve."""
    try:
        # From the engine that started this process, over a connection that only the two of them have.
        job, handle, states = cloudpickle.loads(setup)
        worker = make_worker(job, partial(Federation.from_handle, handle), states, Device(**device))
    except Exception as error:
        connection.send(refusal(error))
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
            tasks, number = rest
            if refused:
                connection.send(("refused", None, refused))
            else:
                connection.send(answer(worker, tasks, partial(put, box=results[number])))


def put(results: list[Answer], box: Box) -> tuple[Rest, Header]:
    """The vectors of a parcel's results into a box; what is sent instead."""
    rest, stacks = stacked(results)
    return rest, box.put(stacks)
