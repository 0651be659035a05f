"""The pipeline of stages between local training and the round's sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedrecall.core.vector import FlatModel, Tensors, TensorSlot
from fedrecall.updates.base import SERVER, Stage, StageContext

STATISTICS = "statistics"  # name of the batch-norm statistics in a change


class Padding(NamedTuple):
    """The padding of a flat vector, which stages do not see: it neither travels nor gets noise."""

    length: int
    parts: tuple[slice, ...]  # the entries that are numbers of the model

    @classmethod
    def of(cls, length: int, slots: Sequence[TensorSlot]) -> Padding:
        return cls(length, tuple(slice(slot.offset, slot.offset + math.prod(slot.shape)) for slot in slots))

    def removed(self, vector: Tensor) -> Tensor:
        return torch.cat([vector[part] for part in self.parts]) if self.parts else vector

    def restored(self, entries: Tensor) -> Tensor:
        vector, start = entries.new_zeros(self.length), 0
        for part in self.parts:
            stop = start + part.stop - part.start
            vector[part] = entries[start:stop]
            start = stop
        return vector


@dataclass(frozen=True)
class Pipeline:
    """Applies stages in order at the client, and in reverse order at the server."""

    stages: tuple[Stage, ...] = ()
    seed: int = 0
    padding: Mapping[str, Padding] = field(default_factory=dict)  # by tensor name, once the model is known

    def __bool__(self) -> bool:
        return bool(self.stages)

    def for_model(self, flat: FlatModel, sent: Tensors) -> Pipeline:
        """Return the pipeline for a model and what its clients send; stages see vectors without padding."""
        w, b = Padding.of(len(flat.w), flat.parameter_slots), Padding.of(len(flat.b), flat.buffer_slots)
        padding = {name: w for name, tensor in sent.items() if tensor.shape == flat.w.shape}
        return replace(self, padding={**padding, STATISTICS: b})

    @property
    def works_on_sums(self) -> bool:
        return any(type(stage).aggregate is not Stage.aggregate for stage in self.stages)

    @property
    def equal_weights(self) -> bool:
        return any(stage.equal_weights for stage in self.stages)

    @property
    def needs_every_round(self) -> bool:
        return any(stage.needs_every_round for stage in self.stages)

    def send(
        self, sent: Tensors, origin: Tensors, state: Tensors, round: int, client: int, cohort: int
    ) -> tuple[Tensors, Tensors]:
        """Return a client's message and its new state; `origin` holds the tensors it was sent."""
        change = {name: tensor - origin[name] if name in origin else tensor for name, tensor in sent.items()}
        change = self._without_padding(change)
        kept = Tensors()
        for place, stage in enumerate(self.stages):
            prefix = f"updates.{place}."
            own = {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}
            change, new = stage.send(change, own, StageContext(self.seed, round, client, cohort, place))
            kept |= {f"{prefix}{name}": tensor for name, tensor in new.items()}
        return change, kept

    def receive(self, sent: Tensors, origin: Tensors, round: int, client: int, cohort: int) -> Tensors:
        """Return the tensors decoded from a client's message."""
        for place, stage in reversed(list(enumerate(self.stages))):
            sent = stage.receive(sent, StageContext(self.seed, round, client, cohort, place))
        sent = self._with_padding(sent)
        return {name: origin[name] + tensor if name in origin else tensor for name, tensor in sent.items()}

    def aggregate(
        self, sums: Tensors, totals: dict[str, float], origin: Tensors, at: StageContext
    ) -> tuple[Tensors, dict[str, float]]:
        """Return the round's sums and totals, transformed by each stage's `aggregate` and `divisors`."""
        apart = {name: totals[name] * origin[name].double() for name in sums if name in origin}
        changes = {name: tensor - apart[name] if name in apart else tensor for name, tensor in sums.items()}
        changes, divisors = self._without_padding(changes), totals
        for place, stage in reversed(list(enumerate(self.stages))):
            at = replace(at, client=SERVER, place=place)
            changes, divisors = stage.aggregate(changes, totals, at), stage.divisors(divisors, at)
        if divisors != totals:
            apart = {name: divisors[name] * origin[name].double() for name in apart}
        changes = self._with_padding(changes)
        return {name: tensor + apart[name] if name in apart else tensor for name, tensor in changes.items()}, divisors

    def _without_padding(self, tensors: Tensors) -> Tensors:
        padding = self.padding
        return {name: padding[name].removed(t) if name in padding else t for name, t in tensors.items()}

    def _with_padding(self, tensors: Tensors) -> Tensors:
        padding = self.padding
        return {name: padding[name].restored(t) if name in padding else t for name, t in tensors.items()}
