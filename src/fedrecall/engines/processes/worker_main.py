"""Entry point of worker processes of the engine `processes` and of studies: `worker_main.py END FOLDER..`.

It is run as a file and imports only the standard library until it has received the module search path, so that a
`random.py` in the user's working folder is not imported by mistake. `engines.messages` cannot be imported before
that either, so "here" and the traceback of a failed import are plain strings. If the engine is gone, the worker
deletes the folders.
"""

from __future__ import annotations

import importlib
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
        connection.send("here")  # the reply holds the search paths, the module to run and its arguments
        work(connection, *connection.recv())
    except (EOFError, ConnectionError):  # the engine is gone, perhaps killed
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def inherited(number: int) -> Connection:
    """Return this worker's end of the connection, which child processes do not inherit."""
    if sys.platform == "win32":
        os.set_handle_inheritable(number, False)
        return multiprocessing.connection.PipeConnection(number)
    os.set_inheritable(number, False)
    return Connection(number)


def work(connection: Connection, libraries: list[str], path: list[str], module: str, *setup: Any) -> None:
    """Import the module with the libraries' search path, then call its `run_worker` with the user's."""
    sys.path[:] = libraries
    try:
        serving = importlib.import_module(module)
    except Exception:
        connection.send(traceback.format_exc())
        return
    sys.path[:] = path
    serving.run_worker(connection, *setup)


if __name__ == "__main__":
    main()
