"""A thread pool whose caller can be interrupted, and which can be closed while a thread hangs.

A pool of the standard library waits for its threads when it is closed, and again when Python exits.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

PAUSE = 0.2  # seconds between polls: on some systems, a signal does not wake a waiting thread
GRACE = 2.0  # seconds for running calls to end when the threads are closed

T = TypeVar("T")
R = TypeVar("R")
Call = tuple[Future[Any], Callable[[Any], Any], Any]  # the result, the function and its argument


class Threads:
    """A pool of `count` threads, each of which calls `begin` first."""

    def __init__(self, count: int, begin: Callable[[], object]) -> None:
        self._closed = False
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._threads = [Thread(target=self._serve, args=(begin,), daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Queue the calls for all items at once and yield their results in the order of the items."""
        futures: list[Future[R]] = []
        for item in items:
            futures.append(Future())
            self._calls.put((futures[-1], function, item))
        futures.reverse()
        try:
            while futures:
                while not futures[-1].done():
                    with suppress(TimeoutError):
                        futures[-1].exception(PAUSE)  # only waits: its exception is raised below
                yield futures.pop().result()  # keeps no reference, because results are large
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End the threads: interrupt running calls, and abandon those that do not react."""
        self._closed = True
        for _ in self._threads:
            self._calls.put(None)
        for _ in range(round(GRACE / PAUSE)):
            end = time.monotonic() + PAUSE
            for thread in self._threads:
                thread.join(max(0.0, end - time.monotonic()))
            left = [thread for thread in self._threads if thread.is_alive()]
            if not left:
                return
            for thread in left:
                interrupt(thread)

    def _serve(self, begin: Callable[[], object]) -> None:
        begin()
        while (call := self._calls.get()) is not None and not self._closed:
            complete_future(*call)
            del call  # do not keep its result while waiting


def complete_future(future: Future[Any], function: Callable[[Any], Any], item: Any) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(function(item))
        except BaseException as error:
            future.set_exception(error)


def interrupt(thread: Thread) -> None:
    """Raise `SystemExit` in a thread before its next line of Python; a blocking call is not interrupted."""
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
