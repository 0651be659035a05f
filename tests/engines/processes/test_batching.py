"""Tasks go out in parcels; results come back in their order."""

from __future__ import annotations

from fedrecall.client.work import TrainResult, TrainTask
from fedrecall.engines.processes.batching import InOrder, Parcel


def run_of(count: int, size: int, slots: int = 3) -> InOrder:
    return InOrder([TrainTask(1, k, k) for k in range(count)], lambda total: size, slots)


def done(run: InOrder, parcel: Parcel) -> list[int]:
    """Finish a parcel; the clients whose results are given back then."""
    run.done(parcel, [TrainResult(task) for task in parcel.tasks])
    return [result.task.client for result in run.ready()]


def test_results_wait_for_their_turn() -> None:
    run = run_of(7, 3)
    first, second, third = (run.next() for _ in range(3))
    assert [task.client for task in second.tasks] == [3, 4, 5]
    assert done(run, third) == []
    assert done(run, first) == [0, 1, 2]
    assert done(run, second) == [3, 4, 5, 6]
    assert run.over()


def test_a_slot_is_free_when_all_its_results_are_given_back() -> None:
    run = run_of(4, 2, slots=1)
    parcel = run.next()
    assert run.next() is None
    run.done(parcel, [TrainResult(task) for task in parcel.tasks])
    results = run.ready()
    next(results)
    assert run.next() is None  # the second result still lies there
    assert [result.task.client for result in results] == [1]
    assert [task.client for task in run.next().tasks] == [2, 3]


def test_a_lost_parcel_is_run_again_one_by_one() -> None:
    run = run_of(5, 3)
    first, second = run.next(), run.next()
    assert done(run, second) == []
    run.lost(first)
    singles = [run.next(), run.next()]
    assert [[task.client for task in parcel.tasks] for parcel in singles] == [[0], [1]]
    assert done(run, singles[1]) == []
    assert done(run, singles[0]) == [0, 1]
    assert done(run, run.next()) == [2, 3, 4]
    assert run.over()
