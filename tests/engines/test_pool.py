"""Which worker is given which chunks, also when workers are lost: with workers that only this file knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from fedrecall.client.tasks import TrainTask
from fedrecall.client.update import Update
from fedrecall.engines import pool
from fedrecall.engines.messages import Done, Failed, Message, Refused, WriteFailed
from fedrecall.engines.pool import PoolWorker, WorkerGoneError, WorkerPool
from fedrecall.engines.processes.shared_tensors import SharedTensors
from fedrecall.engines.task_chunks import OrderedTasks, TaskChunk, stack_results, unstack_results
from fedrecall.errors import ClientError, InputError, WriteError

Script = Callable[["Pool", Sequence[PoolWorker]], list[PoolWorker]]


class Pool(WorkerPool[PoolWorker]):
    """Workers that are told by a script when they answer. One that works on a deadly task ends instead."""

    name = "scripted"
    at_once = 2

    def __init__(self, workers: int, script: Script, deadly: Sequence[int] = ()) -> None:
        self.workers, self.script, self.deadly = workers, script, deadly
        self.sent: list[tuple[int, list[int]]] = []  # who was given which clients
        self.gone: set[int] = set()
        self._begin()
        self._fill()

    create = open = close = None  # type: ignore[assignment]

    def _fill(self) -> None:
        while len(self._members) < self.workers:
            number = max([-1, *(member.number for member in self._members), *self.gone]) + 1
            self._members.append(PoolWorker(number, math.inf, ready=True))

    def _send(self, member: PoolWorker, chunk: TaskChunk) -> None:
        self.sent.append((member.number, clients(chunk)))

    def _wait(self, members: Sequence[PoolWorker], seconds: float | None) -> list[PoolWorker]:
        assert members
        return self.script(self, members)

    def _message(self, member: PoolWorker) -> Message:
        if member.hung or set(clients(member.chunks[0])) & set(self.deadly):
            raise WorkerGoneError("gone")
        scalars, _ = stack_results([Update(task) for task in member.chunks[0].tasks])
        return Done(scalars, SharedTensors("", "", ()))

    def _finish(self, work: OrderedTasks, member: PoolWorker, chunk: TaskChunk, message: Done) -> None:
        work.done(chunk, unstack_results(chunk.tasks, message.scalars, {}))

    def _kill(self, member: PoolWorker) -> None: ...

    def _release(self, member: PoolWorker) -> None:
        self._members.remove(member)
        self.gone.add(member.number)

    def _start_timed_out(self, member: PoolWorker) -> None: ...


def clients(chunk: TaskChunk) -> list[int]:
    return [task.client for task in chunk.tasks]


def tasks(count: int) -> list[TrainTask]:
    return [TrainTask(1, order, order) for order in range(count)]


def everyone(pool: Pool, members: Sequence[PoolWorker]) -> list[PoolWorker]:
    return list(members)


def found(results: Iterator[Any]) -> list[int]:
    return [result.task.client for result in results]


def test_a_second_chunk_waits_at_each_worker_but_the_last_ones_go_to_whoever_is_done() -> None:
    had: list[list[list[int]]] = []

    def second_is_slow(scripted: Pool, members: Sequence[PoolWorker]) -> list[PoolWorker]:
        """Worker 1 answers only while worker 0 has nothing to do."""
        had.append([[client for chunk in member.chunks for client in clients(chunk)] for member in members])
        return [members[0]]

    scripted = Pool(2, second_is_slow)  # eight tasks travel one by one
    assert found(scripted.run(tasks(8))) == list(range(8))
    assert had[:3] == [[[0, 2], [1, 3]], [[2, 4], [1, 3]], [[4, 5], [1, 3]]]
    assert had[3] == [[5], [1, 3]]  # 6 and 7 are kept
    assert not any({6, 7} & set(who[1:]) for step in had for who in step)


@pytest.mark.parametrize("at_once", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_are_in_the_order_of_the_tasks(monkeypatch, at_once, workers) -> None:
    monkeypatch.setattr(Pool, "at_once", at_once)
    for script in (everyone, lambda pool, members: [members[-1]], lambda pool, members: [members[0]]):
        scripted = Pool(workers, script)
        assert found(scripted.run(tasks(23))) == list(range(23))
        assert sorted(client for _, who in scripted.sent for client in who) == list(range(23))


def test_what_waited_at_a_dead_worker_is_run_again_and_is_not_blamed() -> None:
    scripted = Pool(1, everyone, deadly=[0])
    with pytest.raises(ClientError, match=r"client 0 in round 1 ended its worker process 3 times \(gone\)"):
        list(scripted.run(tasks(6)))
    # With 1 waiting behind it, 0 might not be the reason: that death counts for neither. Then it is run alone.
    assert scripted.sent == [(0, [0]), (0, [1]), (1, [0]), (2, [0]), (3, [0])]
    assert list(scripted._deaths) == [tasks(1)[0]]


def test_a_task_that_kills_while_others_wait_stops_nobody_else() -> None:
    def die_twice(scripted: Pool, members: Sequence[PoolWorker]) -> list[PoolWorker]:
        scripted.deadly = [0] if len(scripted.gone) < 2 else []
        return list(members)

    scripted = Pool(2, die_twice)
    assert found(scripted.run(tasks(9))) == list(range(9))
    assert sum(deaths.total() for deaths in scripted._deaths.values()) == 1  # the other had one waiting behind it


def test_workers_have_a_second_chunk_again_after_the_call_in_which_one_was_lost() -> None:
    def die_once(scripted: Pool, members: Sequence[PoolWorker]) -> list[PoolWorker]:
        scripted.deadly = [] if scripted.gone else [0]
        return list(members)

    scripted = Pool(1, die_once)
    assert found(scripted.run(tasks(5))) == list(range(5))
    assert scripted._most == 1
    scripted.sent.clear()
    results = scripted.run(tasks(5))
    next(results)
    assert scripted._most == 2


def test_the_time_of_a_chunk_begins_when_the_one_before_it_is_answered(monkeypatch) -> None:
    now, seen = [100.0], []
    monkeypatch.setattr(pool.time, "monotonic", lambda: now[0])

    def later(scripted: Pool, members: Sequence[PoolWorker]) -> list[PoolWorker]:
        now[0] += 7
        seen.append(members[0].deadline)
        return list(members)

    scripted = Pool(1, later)
    scripted.client_timeout = 10.0
    assert found(scripted.run(tasks(3))) == [0, 1, 2]
    # The first is given at 100, with the second behind it; answers come at 107 and 114, the third is given at 114.
    assert seen == [110.0, 117.0, 124.0]


def test_only_the_first_of_a_worker_that_hangs_is_blamed(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(pool.time, "monotonic", lambda: now[0])

    def hang(scripted: Pool, members: Sequence[PoolWorker]) -> list[PoolWorker]:
        stuck = [member for member in members if 0 in clients(member.chunks[0]) and not member.hung]
        now[0] += 11 if stuck else 0
        return [member for member in members if member not in stuck]

    scripted = Pool(1, hang)
    scripted.client_timeout = 10.0
    with pytest.raises(ClientError, match=r"client 0 in round 1 did not answer for 10.0 s 3 times"):
        list(scripted.run(tasks(6)))
    assert scripted.sent == [(0, [0]), (0, [1]), (1, [0]), (2, [0])]


@pytest.mark.parametrize(
    ("message", "raised", "sentence"),
    [
        (Refused("lr is 0"), InputError, r"^lr is 0$"),
        (WriteFailed("disk full"), WriteError, r"^disk full$"),
        (Failed(TrainTask(1, 0, 5), "KeyError\n"), ClientError, r"^client 5 in round 1 failed .*:\n\nKeyError$"),
        (Failed(None, "ImportError\n"), ClientError, r"^a worker process could not begin:\n\nImportError$"),
    ],
)
def test_failures_of_workers_end_the_run(monkeypatch, message, raised, sentence) -> None:
    monkeypatch.setattr(Pool, "_message", lambda pool, member: message)
    scripted = Pool(1, everyone)
    with pytest.raises(raised, match=sentence) as caught:
        list(scripted.run(tasks(1)))
    assert type(caught.value) is raised
    assert scripted.failed == getattr(message, "task", None)
