"""The tensors of one client's exchange with the server: their names and shapes, which are those of every round."""

from __future__ import annotations

from dataclasses import dataclass

from fedrecall.client.job import Job
from fedrecall.core.vector import FlatModel, Tensors
from fedrecall.updates.pipeline import STATISTICS


@dataclass(frozen=True)
class DryUpdate:
    """The tensors that a client is sent, and those that it sends after one step, without training."""

    server: Tensors  # sent to the client, besides the buffers
    buffers: Tensors  # of the model; empty if it has none
    names: tuple[str, ...]  # of the tensors that the algorithm and the optimiser send
    message: Tensors  # the same after the stages of updates
    message_buffers: Tensors  # the buffers that are sent with it

    @classmethod
    def of(cls, job: Job, flat: FlatModel) -> DryUpdate:
        x, buffers = flat.w.clone(), flat.buffers() if flat.has_buffers else {}
        server, sent = job.broadcast(job.init_server(x)), job.unmoved(x)
        message, travelling = sent, {} if job.own_buffers else buffers
        if job.pipeline:
            floats = {STATISTICS: flat.b} if travelling else {}
            message, _ = job.pipeline.send({**sent, **floats}, {**server, **floats}, {}, round=1, client=0, cohort=1)
            travelling = {"i": buffers["i"]} if travelling else {}
        return cls(server, buffers, tuple(sent), message, travelling)
