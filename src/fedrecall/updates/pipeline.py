"""The pipeline of stages between local training and the round's sums."""

from __future__ import annotations

from dataclasses import dataclass

from fedrecall.core.vector import Tensors
from fedrecall.updates.base import SERVER, Stage, StageContext

STATISTICS = "statistics"  # name of the batch-norm statistics in a change


@dataclass(frozen=True)
class Pipeline:
    """Applies stages in order at the client, and in reverse order at the server."""

    stages: tuple[Stage, ...] = ()
    seed: int = 0

    def __bool__(self) -> bool:
        return bool(self.stages)

    @property
    def works_on_sums(self) -> bool:
        return any(type(stage).aggregate is not Stage.aggregate for stage in self.stages)

    def send(
        self, sent: Tensors, origin: Tensors, state: Tensors, round: int, client: int, cohort: int
    ) -> tuple[Tensors, Tensors]:
        """Return a client's message and its new state; `origin` holds the tensors it was sent."""
        change = {name: tensor - origin[name] if name in origin else tensor for name, tensor in sent.items()}
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
        return {name: origin[name] + tensor if name in origin else tensor for name, tensor in sent.items()}

    def aggregate(self, sums: Tensors, totals: dict[str, float], origin: Tensors, round: int, cohort: int) -> Tensors:
        """Return the round's sums, transformed by each stage's `aggregate`."""
        if not self.works_on_sums:
            return sums
        apart = {name: totals[name] * origin[name].double() for name in sums if name in origin}
        changes = {name: tensor - apart[name] if name in apart else tensor for name, tensor in sums.items()}
        for place, stage in reversed(list(enumerate(self.stages))):
            changes = stage.aggregate(changes, totals, StageContext(self.seed, round, SERVER, cohort, place))
        return {name: tensor + apart[name] if name in apart else tensor for name, tensor in changes.items()}
