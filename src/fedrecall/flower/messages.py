"""The contents of a federation's messages, and how both sides read them.

    QUERY     identify the client   {recipe, counts}               -> numbers of samples, what the node allows
    TRAIN     run a client update   the server's tensors, a task   -> what the algorithm sends, counts, the loss
    EVALUATE  evaluate models       a record of tensors for each   -> correct samples, likelihood of each

Plain values are in one ConfigRecord (`TASK`, both ways), measured numbers in one MetricRecord, and the tensors of
a client update in one ArrayRecord each way, as Flower's mods expect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from fedrecall.client.job import Job
from fedrecall.core.vector import FlatModel, Tensors
from fedrecall.flower.refusal import RefusedError
from fedrecall.flower.tensors import Layout, layout_of
from fedrecall.updates.pipeline import STATISTICS

TASK, ARRAYS, METRICS, MODEL = "task", "arrays", "metrics", "model"
BUFFERS = "buffers."  # prefix of the names of a model's buffers among other tensors
REFUSED = 1001  # error code of our refusals, above all of Flower's own
PUBLISHED = "published"  # the name of the global model among those to evaluate
LARGEST = 2**53


class Fields:
    """The plain values of a record, each checked when it is read."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = record

    def whole(self, key: str, least: int = 0, most: int = LARGEST) -> int:
        value = self._get(key)
        if type(value) is not int or not least <= value <= most:
            raise RefusedError(f"its {key!r} is {str(value)[:40]}; a whole number from {least} was expected")
        return value

    def real(self, key: str) -> float:
        value = self._get(key)
        if type(value) not in (int, float):
            raise RefusedError(f"its {key!r} is {str(value)[:40]}; a number was expected")
        return float(value)

    def text(self, key: str) -> str:
        value = self._get(key)
        if type(value) is not str or len(value) > 200:
            raise RefusedError(f"its {key!r} is not a short text")
        return value

    def flag(self, key: str) -> bool:
        value = self._get(key)
        if type(value) is not bool:
            raise RefusedError(f"its {key!r} is {str(value)[:40]}; true or false was expected")
        return value

    def reals(self, key: str, count: int) -> list[float]:
        """Return a list of `count` finite numbers, none negative."""
        values = self._get(key)
        good = isinstance(values, list) and len(values) == count
        if not good or not all(type(v) in (int, float) and math.isfinite(v) and v >= 0 for v in values):
            raise RefusedError(f"its {key!r} is not a list of {count} numbers")
        return [float(value) for value in values]

    def wholes(self, key: str, count: int) -> list[int]:
        values = self.reals(key, count)
        if not all(value.is_integer() for value in values):
            raise RefusedError(f"its {key!r} is not a list of {count} whole numbers")
        return [int(value) for value in values]

    def _get(self, key: str) -> Any:
        if key not in self.record:
            raise RefusedError(f"it has no {key!r}")
        return self.record[key]


def task_of(content: RecordDict) -> Fields:
    return Fields(the_record(content, TASK, ConfigRecord))


def metrics_of(content: RecordDict) -> Fields:
    return Fields(the_record(content, METRICS, MetricRecord))


def the_record(content: RecordDict, name: str, kind: type) -> Any:
    """Return a record; raise a `RefusedError` if it is missing or of another kind."""
    record = content.get(name)
    if not isinstance(record, kind):
        raise RefusedError(f"it has no {kind.__name__} {name!r}")
    return record


@dataclass(frozen=True)
class Layouts:
    """The layouts of the tensors in a run's messages, which each side derives from the recipe."""

    down: Layout  # from the server to a client
    up: Layout  # from a client to the server
    model: Layout  # a model to be evaluated
    names: tuple[str, ...]  # names of the tensors that the algorithm sends

    @classmethod
    def of(cls, job: Job, flat: FlatModel) -> Layouts:
        """Derive the layouts from what the algorithm and the update stages send after one step."""
        algorithm, x = job.algorithm, flat.w.clone()
        buffers = with_prefix(flat.buffers()) if flat.has_buffers else {}
        server, sent = algorithm.broadcast(algorithm.init(x)), job.unmoved(x)
        message, travelling = sent, {} if job.own_buffers else buffers
        if job.pipeline:
            floats = {STATISTICS: flat.b} if travelling else {}
            message, _ = job.pipeline.send({**sent, **floats}, {**server, **floats}, {}, round=1, client=0, cohort=1)
            travelling = {f"{BUFFERS}i": buffers[f"{BUFFERS}i"]} if travelling else {}
        return cls(
            layout_of({**server, **buffers}),
            layout_of({**message, **travelling}),
            layout_of({"w": x, **buffers}),
            tuple(sent),
        )


def with_prefix(buffers: Tensors) -> Tensors:
    return {f"{BUFFERS}{name}": tensor for name, tensor in buffers.items()}


def split_buffers(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Return the tensors that are not buffers, and the model's buffers without their prefix."""
    buffers = {name.removeprefix(BUFFERS): t for name, t in tensors.items() if name.startswith(BUFFERS)}
    rest = {name: tensor for name, tensor in tensors.items() if not name.startswith(BUFFERS)}
    return rest, buffers
