"""The worker side of every engine with workers: make the worker once, then run the tasks that it receives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fedrecall.backend.device import Device
from fedrecall.backend.torch_state import FixedState
from fedrecall.client.job import Job
from fedrecall.client.tasks import Task
from fedrecall.client.worker import Worker
from fedrecall.data.federation import Federation
from fedrecall.engines.malloc import keep_freed_memory
from fedrecall.engines.messages import Failed, Failure, Refused, WriteFailed
from fedrecall.engines.task_chunks import TaskResult
from fedrecall.errors import InputError, WriteError
from fedrecall.runs.client_states import States
from fedrecall.user_code import their_traceback


def make_worker(job: Job, open_federation: Callable[[], Federation], states: States, device: Device) -> Worker:
    """Return the worker of a dedicated process, in which torch's settings stay fixed."""
    keep_freed_memory()
    FixedState().fix()  # after importing user code, which may have changed a setting
    torch.set_num_threads(job.local.threads)
    device.fix()
    with device.explained(job.local.batch_size):
        return Worker(job, open_federation(), states, device)


def run_tasks(worker: Worker, tasks: Sequence[Task]) -> list[TaskResult] | Failure:
    """Return the results of all tasks, or the first failure."""
    results: list[TaskResult] = []
    for task in tasks:
        try:
            results.append(worker.run(task))
        except Exception as error:
            return failure_of(error, task)
    return results


def failure_of(error: Exception, task: Task | None = None) -> Failure:
    """Return the message that reports an exception."""
    if isinstance(error, WriteError):
        return WriteFailed(str(error))
    if isinstance(error, InputError):
        return Refused(str(error))
    return Failed(task, their_traceback(error))
