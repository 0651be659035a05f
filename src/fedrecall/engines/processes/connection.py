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
    """A Python process that has one end of a new connection, whose number is its first argument; the other end."""
    ours, theirs = Pipe()
    with theirs:  # closed here, so that a worker's end is the connection's
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
    """How `Popen` is told to hand this end down, and nothing else."""
    if sys.platform == "win32":
        import os

        os.set_handle_inheritable(number, True)
        return {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [number]})}
    return {"pass_fds": (number,)}


def receive(connection: Connection) -> Any:
    """The next message; an `EOFError` if the other side is gone, also in the middle of a message."""
    try:
        return connection.recv()
    except OSError as error:
        raise EOFError from error
