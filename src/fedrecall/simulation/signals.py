"""Was a run stopped from outside, or by code that raised what a signal raises?"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Whether one has come."""

    seen = False

    def stop(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        raise KeyboardInterrupt


@contextmanager
def noted_signals() -> Iterator[Signals]:
    """Ctrl-C and SIGTERM raise KeyboardInterrupt as before, and are noted. Handlers of the user's own stay."""
    noted, before = Signals(), {}
    if threading.current_thread() is threading.main_thread():
        for number in STOPPING:
            if signal.getsignal(number) is signal.default_int_handler:
                before[number] = signal.signal(number, noted.stop)
    else:
        noted.seen = True  # nobody can tell here
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
