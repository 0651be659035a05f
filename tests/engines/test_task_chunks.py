"""Tasks go out in chunks; results come back in their order."""

from __future__ import annotations

from fedrecall.client.tasks import TrainTask
from fedrecall.client.update import Update
from fedrecall.engines.task_chunks import OrderedTasks, TaskChunk


def run_of(count: int, size: int) -> OrderedTasks:
    return OrderedTasks([TrainTask(1, k, k) for k in range(count)], lambda total: size)


def done(run: OrderedTasks, chunk: TaskChunk) -> list[int]:
    """Finish a chunk; return the clients whose results are yielded then."""
    run.done(chunk, [Update(task) for task in chunk.tasks])
    return [result.task.client for result in run.ready()]


def clients(chunk: TaskChunk) -> list[int]:
    return [task.client for task in chunk.tasks]


def test_results_wait_for_their_turn() -> None:
    run = run_of(7, 3)
    first, second, third = (run.next(worker) for worker in range(3))
    assert clients(second) == [3, 4, 5]
    assert done(run, third) == []
    assert done(run, first) == [0, 1, 2]
    assert done(run, second) == [3, 4, 5, 6]
    assert run.over()


def test_a_slot_is_free_when_all_its_results_were_yielded() -> None:
    run = run_of(8, 2)
    first, second = run.next(0), run.next(0)
    assert {first.slot, second.slot} == {0, 1}
    assert run.next(0) is None
    run.done(first, [Update(task) for task in first.tasks])
    results = run.ready()
    next(results)
    assert run.next(0) is None  # the second result is still there
    assert [result.task.client for result in results] == [1]
    again = run.next(0)
    assert (clients(again), again.slot) == ([4, 5], first.slot)


def test_a_worker_whose_slots_are_full_does_not_keep_others_from_work() -> None:
    run = run_of(4, 1)
    slow, *held = run.next(0), run.next(1), run.next(1)
    assert [done(run, chunk) for chunk in held] == [[], []]
    assert run.next(1) is None
    assert clients(run.next(2)) == [3]
    assert done(run, slow) == [0, 1, 2]


def test_a_lost_chunk_is_run_again_one_by_one() -> None:
    run = run_of(5, 3)
    first, second = run.next(0), run.next(1)
    assert done(run, second) == []
    run.lost(first)
    singles = [run.next(2), run.next(2)]
    assert [clients(chunk) for chunk in singles] == [[0], [1]]
    assert done(run, singles[1]) == []
    assert done(run, singles[0]) == [0, 1]
    assert done(run, run.next(2)) == [2, 3, 4]
    assert run.over()


def test_who_is_left_alone_with_full_slots_gets_the_lost_chunk_whose_turn_it_is() -> None:
    tasks = [TrainTask(1, k, k) for k in range(6)]
    run = OrderedTasks(tasks, lambda total: 1, more=True)
    lost, *held = run.next(0), run.next(1), run.next(1)
    assert [done(run, chunk) for chunk in held] == [[], []]
    assert run.next(1) is None  # its turn is later
    run.lost(lost)  # and there is no room for another worker
    again = run.next(1)
    assert clients(again) == [0]
    assert again.slot not in {chunk.slot for chunk in held}
    assert run.next(1) is None
    assert done(run, again) == [0, 1, 2]
    assert [done(run, run.next(1)) for _ in range(3)] == [[3], [4], [5]]
    assert run.over()


def test_of_two_lost_chunks_the_lower_is_run_first() -> None:
    # In the other order, two new workers would fill all their slots with results that wait for the first.
    run = run_of(12, 6)
    first, second = run.next(0), run.next(1)
    run.lost(first)
    run.lost(second)
    assert [clients(run.next(worker)) for worker in (2, 2, 3, 3)] == [[0], [1], [2], [3]]
