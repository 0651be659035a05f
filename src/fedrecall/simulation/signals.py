"""Tell signals from outside apart from user code that raises KeyboardInterrupt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Records whether a signal has arrived."""

    seen = False

    def stop(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        raise KeyboardInterrupt


@contextmanager
def noted_signals() -> Iterator[Signals]:
    """Record Ctrl-C and SIGTERM, which raise KeyboardInterrupt as before; the user's own handlers stay."""
    noted, before = Signals(), {}
    if threading.current_thread() is threading.main_thread():
        for number in STOPPING:
            if signal.getsignal(number) is signal.default_int_handler:
                before[number] = signal.signal(number, noted.stop)
    else:
        noted.seen = True  # unknown outside the main thread: assume a signal
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
