"""What a worker answers, wherever it is: the results of its tasks, or why there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fedrecall.client.job import Job
from fedrecall.client.tasks import Task
from fedrecall.client.worker import Worker
from fedrecall.data.federation import Federation
from fedrecall.device import Device
from fedrecall.engines.malloc import keep_freed_memory
from fedrecall.engines.parcels import Answer
from fedrecall.errors import InputError, WriteError
from fedrecall.runs.client_states import States
from fedrecall.torch_state import FixedState
from fedrecall.user_code import their_traceback

Message = tuple[str, Any, Any]  # what it is, of which task, and the rest


def make_worker(job: Job, open_federation: Callable[[], Federation], states: States, device: Device) -> Worker:
    """The one worker of a process that does nothing else; torch's settings are fixed for good."""
    keep_freed_memory()
    FixedState().fix()  # after the import of code that may have set something
    torch.set_num_threads(job.local.threads)
    device.fix()
    with device.explained(job.local.batch_size):
        return Worker(job, open_federation(), states, device)


def refusal(error: Exception, task: Task | None = None) -> Message:
    """What is said of an exception."""
    if isinstance(error, WriteError):
        return "unwritten", task, str(error)
    if isinstance(error, InputError):
        return "refused", task, str(error)
    return "failed", task, their_traceback(error)


def answer(worker: Worker, tasks: Sequence[Task], packed: Callable[[list[Answer]], Any]) -> Message:
    """The results of all tasks, as `packed` gives them on their way, or the first that has none."""
    results = []
    for task in tasks:
        try:
            results.append(worker.run(task))
        except Exception as error:
            return refusal(error, task)
    try:
        return "done", None, packed(results)
    except WriteError as error:
        return refusal(error)
