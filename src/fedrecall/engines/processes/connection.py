"""Connections between the engine and its workers, which nobody else can reach.

Both ends are made by the engine, and a worker inherits its own: there is no port and no key for a stranger to use.
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
    """Start a Python process with one end of a new connection, its first argument; return it and the other end."""
    ours, theirs = Pipe()
    with theirs:  # closed in this process, so that the connection ends with the worker
        number = theirs.fileno()
        # -P: not the working folder, which would come before the standard library
        command = [sys.executable, "-P", script, str(number), *arguments]
        try:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, **inheriting(number))
        except BaseException:
            ours.close()
            raise
    return process, ours


def inheriting(number: int) -> dict[str, Any]:
    """Return the arguments by which `Popen` passes on this end of the connection, and nothing else."""
    if sys.platform == "win32":
        import os

        os.set_handle_inheritable(number, True)
        return {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [number]})}
    return {"pass_fds": (number,)}


def receive(connection: Connection) -> Any:
    """Return the next message; raise `EOFError` if the other side is gone, also in the middle of a message."""
    try:
        return connection.recv()
    except OSError as error:
        raise EOFError from error
