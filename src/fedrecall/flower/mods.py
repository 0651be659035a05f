"""Mods for existing Flower apps, which need no change to the apps' code."""

from __future__ import annotations

from dataclasses import dataclass
from logging import INFO, WARNING

from flwr.app import Context, Message, MessageType, MetricRecord
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.logger import log

NAME = "fedrecall.forgetting"  # key of the accuracies that a node keeps during a run


@dataclass(frozen=True)
class ForgettingMod:
    """Measures what the global model has forgotten of this node's data, since the last and the best evaluation.

    It reads the accuracy in the answer of the app's own evaluate function and adds two numbers: `forgetting`, the
    previous accuracy minus the current one, and `forgetting_from_best`, the best previous accuracy minus the
    current one. Both are 0 at first; a negative value is an improvement.

    Enable it by `ClientApp(mods=[ForgettingMod("accuracy")])`.
    """

    metric: str = "accuracy"  # the key of the accuracy in the answer's MetricRecord

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        answer = call_next(message, context)
        if message.metadata.message_type.partition(".")[0] != MessageType.EVALUATE or answer.has_error():
            return answer
        for record in answer.content.metric_records.values():
            now = record.get(self.metric)
            if isinstance(now, int | float):
                self._add(record, float(now), context)
                return answer
        found = sorted(key for record in answer.content.metric_records.values() for key in record)
        log(WARNING, "ForgettingMod: the answer has no number %r; it has: %s", self.metric, ", ".join(found))
        return answer

    def _add(self, record: MetricRecord, now: float, context: Context) -> None:
        before = context.state.metric_records.get(NAME, MetricRecord({"last": now, "best": now}))
        last, best = before["last"], before["best"]
        assert isinstance(last, float)
        assert isinstance(best, float)
        record["forgetting"], record["forgetting_from_best"] = last - now, best - now
        log(INFO, "forgetting: %+.4f since the last evaluation, %+.4f since the best", last - now, best - now)
        context.state.metric_records[NAME] = MetricRecord({"last": now, "best": max(best, now)})
