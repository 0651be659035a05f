"""A sentence for a process that is ended before it can say one.

When the connection to its node breaks, Ray's C++ client ends the process at once: no exception, no exit handler. So a
small process waits at a pipe, and says the sentence if the pipe is closed without a word.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys

# No module of ours or of Ray's: it starts in some milliseconds and outlives both.
PROGRAM = """
import os, sys
if not sys.stdin.buffer.read():
    os.write(2, sys.argv[1].encode("utf-8", "backslashreplace"))
"""


class LastWords:
    """Says a sentence on stderr if this process ends before `close`."""

    def __init__(self, sentence: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PROGRAM, f"fedrecall: {sentence}\n"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process
        )

    def close(self) -> None:
        """Say nothing."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._process.communicate(b"closed", timeout=10.0)
