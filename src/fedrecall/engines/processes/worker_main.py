"""Where a worker process of the `processes` engine begins: `python -P worker_main.py END FOLDER..`.

It is run as a file, and imports nothing but the standard library before the engine has said where to look for
modules: a `random.py` in the folder in which the user happens to work is none of ours. The folders are those that
the engine would leave behind if it were killed.
"""

from __future__ import annotations

import multiprocessing.connection
import os
import shutil
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the engine decides
    connection, folders = inherited(int(sys.argv[1])), sys.argv[2:]
    try:
        connection.send("here")
        work(connection, *connection.recv())
    except (EOFError, ConnectionError):  # the engine is gone, perhaps killed: leave nothing of it behind
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def inherited(number: int) -> Connection:
    """This worker's end of the connection; processes that user code starts here do not get it."""
    if sys.platform == "win32":
        os.set_handle_inheritable(number, False)
        return multiprocessing.connection.PipeConnection(number)
    os.set_inheritable(number, False)
    return Connection(number)


def work(
    connection: Connection,
    libraries: list[str],
    path: list[str],
    setup: bytes,
    folder: str,
    name: str,
    device: dict[str, Any],
) -> None:
    """Import what is ours, then what is the user's, and answer until the engine is gone or has had enough."""
    sys.path[:] = libraries
    try:
        from fedrecall.engines.processes import serving
    except Exception:
        connection.send(("failed", None, traceback.format_exc()))
        return
    sys.path[:] = path
    serving.begin(connection, setup, folder, name, device)


if __name__ == "__main__":
    main()
