"""All tasks one after the other in this process: the engine that the others are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from fedrecall.client.work import Job, Result, Task
from fedrecall.client.worker import Worker
from fedrecall.data.federation import Federation
from fedrecall.engines.malloc import keep_freed_memory
from fedrecall.runs.client_states import ClientStore
from fedrecall.vector import Tensors


class Serial:
    """One worker, here."""

    name = "serial"
    workers = 1
    failed: Task | None = None

    def open(self, job: Job, federation: Federation, store: ClientStore) -> None:
        keep_freed_memory()
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(job.local.threads)
        self._worker = Worker(job, federation, store)

    def publish(self, round: int, server: Tensors, buffers: Tensors) -> None:
        self._worker.publish(server, buffers)

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        for task in tasks:
            self.failed = task
            result = self._worker.run(task)
            self.failed = None
            yield result

    def close(self) -> None:
        torch.set_num_threads(self._threads_before)
