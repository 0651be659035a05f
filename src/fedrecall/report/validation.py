"""The validation accuracy of a run: the same number in the table of a study and on the page."""

from __future__ import annotations

from fedrecall.runs.reader import RunRecord


def last_validation(record: RunRecord, key: str = "val_accuracy") -> float | None:
    """Return the mean validation accuracy over the evaluated rounds in the run's window of last rounds.

    An unfinished run may have none there; its last one is returned.
    """
    rounds, values = record.curve(key)
    if not len(rounds):
        return None
    last = values[rounds > record.rounds_done - window_of(record)]
    return float(last.mean() if len(last) else values[-1])


def window_of(record: RunRecord) -> int:
    """Return the number of last rounds to average: that of the test accuracy, so that both use the same rounds."""
    return int(record.summary.get("final_accuracy_rounds") or 1)
