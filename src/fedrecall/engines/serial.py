"""The reference engine, which runs all tasks one after the other in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import torch

from fedrecall.backend.device import CPU, Device
from fedrecall.client.job import Job
from fedrecall.client.partial_sums import Result
from fedrecall.client.tasks import Task
from fedrecall.client.worker import Worker
from fedrecall.core.vector import Tensors
from fedrecall.data.federation import Federation
from fedrecall.engines.engine import Engine
from fedrecall.engines.malloc import keep_freed_memory
from fedrecall.recipe.settings import Execution
from fedrecall.runs.client_states import States


class Serial(Engine):
    """A single worker in this process."""

    name = "serial"
    most_workers = 1

    @classmethod
    def create(cls, workers: int, execution: Execution, devices: Sequence[Device] = (CPU,)) -> Self:
        engine = cls()
        engine.devices = devices[:1]
        return engine

    def open(self, job: Job, federation: Federation, states: States) -> None:
        keep_freed_memory()
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(job.local.threads)
        (device,) = self.devices
        device.fix()
        with device.explained(job.local.batch_size):
            self._worker = Worker(job, federation, states, device)

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
