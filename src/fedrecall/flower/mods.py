"""For Flower apps of your own: mods around their clients' functions, which need no change of their code."""

from __future__ import annotations

from dataclasses import dataclass
from logging import INFO, WARNING

from flwr.app import Context, Message, MessageType, MetricRecord
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.logger import log

NAME = "fedrecall.forgetting"  # of what a node remembers during a run


@dataclass(frozen=True)
class ForgettingMod:
    """What the global model has forgotten of this node's data, since it last evaluated it and since its best.

    It looks at the accuracy with which the app's own evaluate function answers, and adds two numbers to it:
    `forgetting`, the accuracy of the evaluation before less that of now, and `forgetting_from_best`, the best so
    far less that of now. Both are 0 at first; negative: never better.

    `ClientApp(mods=[ForgettingMod("accuracy")])` is all there is to do.
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
