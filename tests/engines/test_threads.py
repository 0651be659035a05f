"""Threads that can be left."""

from __future__ import annotations

import threading
import time

import pytest

from fedrecall.engines import threads
from fedrecall.engines.threads import Threads


@pytest.fixture
def two():
    two = Threads(2, lambda: None)
    yield two
    two.close()


def test_results_come_in_the_order_of_the_items(two) -> None:
    def late(number: int) -> int:
        time.sleep(0.05 * (3 - number))
        return number * number

    assert list(two.map(late, range(4))) == [0, 1, 4, 9]


def test_every_thread_begins_as_it_is_told() -> None:
    begun = []
    some = Threads(3, lambda: begun.append(threading.get_ident()))
    list(some.map(abs, range(5)))
    some.close()
    assert len(set(begun)) == len(begun) == 3


def test_what_a_call_raises_is_raised_in_its_turn(two) -> None:
    results = two.map(lambda number: 1 / number, [1, 0, 2])
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_a_call_without_end_is_interrupted_when_the_threads_are_closed(two) -> None:
    begun = threading.Event()

    def loop(forever: bool) -> None:
        while forever:
            begun.set()
            try:
                time.sleep(0.01)
            except Exception:
                continue

    results = two.map(loop, [False, True])
    next(results)
    begun.wait()
    two.close()
    assert not any(thread.is_alive() for thread in two._threads)


def test_a_call_that_takes_no_notice_is_left(two, monkeypatch) -> None:
    monkeypatch.setattr(threads, "GRACE", 0.4)
    begun, goes_on = threading.Event(), threading.Event()

    def hang(forever: bool) -> None:
        if forever:
            begun.set()
            goes_on.wait()

    results = two.map(hang, [False, True])
    next(results)
    begun.wait()
    began = time.monotonic()
    two.close()
    assert time.monotonic() - began < 5
    left = [thread for thread in two._threads if thread.is_alive()]
    assert [thread.daemon for thread in left] == [True]  # it keeps no process from ending
    goes_on.set()


def test_closing_leaves_what_has_not_begun(two) -> None:
    done = []

    def call(number: int) -> None:
        time.sleep(0.05)
        done.append(number)

    results = two.map(call, range(100))
    next(results)
    two.close()
    assert len(done) < 10
