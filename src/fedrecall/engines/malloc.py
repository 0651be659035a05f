"""Keep freed memory for the next step.

By default glibc returns large buffers to the system when they are freed and fetches them again, page by page, at
the next step, which takes a fifth of the time of a small model.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

# Parameters of malloc.h; the sizes below hold the activations of a step.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
MEBIBYTE = 2**20


def keep_freed_memory() -> None:
    """Make glibc keep freed memory in this process; do nothing with other C libraries."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):  # musl has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, 32 * MEBIBYTE)
        mallopt(TRIM_THRESHOLD, 512 * MEBIBYTE)
        mallopt(TOP_PAD, 16 * MEBIBYTE)
