"""Keeping freed memory for the next step.

By default glibc gives large buffers back to the system when they are freed and fetches them anew, page by page, at
the next step: a fifth of the time of a small model.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

# The names and numbers of malloc.h, and sizes that hold the activations of a step.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
MEBIBYTE = 2**20


def keep_freed_memory() -> None:
    """For this process, from now on; nothing happens where the C library is another."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):  # musl has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, 32 * MEBIBYTE)
        mallopt(TRIM_THRESHOLD, 512 * MEBIBYTE)
        mallopt(TOP_PAD, 16 * MEBIBYTE)
