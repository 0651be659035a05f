"""Private connections between the engine and its workers.

The engine creates both ends and a worker inherits its own, so there is no port or key that a stranger could use.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any


def start(
    script: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a Python process that inherits one end of a new connection; return it and the other end."""
    ours, theirs = Pipe()
    with theirs:  # close it in this process, so that the connection ends with the worker
        number = theirs.fileno()
        # -P: keep the working folder off the search path, where it would precede the standard library
        command = [sys.executable, "-P", script, str(number), *arguments]
        try:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, **inheriting(number))
        except BaseException:
            ours.close()
            raise
    return process, ours


def inheriting(number: int) -> dict[str, Any]:
    """Return the `Popen` arguments that pass on this end of the connection and no other handle."""
    if sys.platform == "win32":
        import os

        os.set_handle_inheritable(number, True)
        return {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [number]})}
    return {"pass_fds": (number,)}


def receive(connection: Connection) -> Any:
    """Return the next message; raise `EOFError` if the other side is gone, even in the middle of a message."""
    try:
        return connection.recv()
    except OSError as error:
        raise EOFError from error
