"""A worker process of the `processes` engine: `python -m fedrecall.engines.processes.worker_main PORT`.

It connects to the engine that started it, is told what to run, and answers until the engine is gone. Vectors come
and go through boxes.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import cloudpickle
import torch

from fedrecall.client.work import Task
from fedrecall.client.worker import Worker
from fedrecall.engines.malloc import keep_freed_memory
from fedrecall.engines.processes import connection as link
from fedrecall.engines.processes.batching import pack
from fedrecall.engines.processes.shared_tensors import Box, Boxes
from fedrecall.errors import InputError, WriteError
from fedrecall.user_code import their_traceback


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the engine decides
    keep_freed_memory()
    connection = link.connect(int(sys.argv[1]))
    folder, leftovers, path, setup = connection.recv()
    sys.path[:] = path
    try:
        # From the engine that started this process, over a connection that only the two of them have the key to.
        job, handle, states = cloudpickle.loads(setup)
        torch.set_num_threads(job.local.threads)
        worker = Worker(job, handle.open(), states)
    except Exception as error:
        connection.send(("failed", None, their_traceback(error)))
        return
    try:
        connection.send(("ready", None, None))
        serve(connection, worker, folder)
    except (EOFError, ConnectionError):  # the engine is gone, perhaps killed: leave nothing of it behind
        for path in leftovers:
            shutil.rmtree(path, ignore_errors=True)


def serve(connection: Connection, worker: Worker, folder: Path) -> None:
    boxes, results = Boxes(folder), dict[int, Box]()
    while True:
        kind, *rest = link.receive(connection)
        if kind == "stop":
            return
        if kind == "publish":
            server, buffers = ({name: t.clone() for name, t in boxes.take(header).items()} for header in rest)
            worker.publish(server, buffers)
        else:
            tasks, slot = rest
            # Of this worker's own: another may fill the same slot in another round, with more.
            box = results.setdefault(slot, Box(folder, f"result-{os.getpid()}-{slot}"))
            connection.send(answer(worker, tasks, box))


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
        return "done", None, pack(results, box)
    except WriteError as error:
        return "unwritten", None, str(error)


if __name__ == "__main__":
    main()
