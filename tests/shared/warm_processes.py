"""Processes that begin within milliseconds: forks of a process that has imported torch and has computed nothing.

They stand in for processes that a test would else start by the hundred, at some seconds each: those in which cases
run, and the workers of the engine `processes`, which run the same code as ever from `worker_main.main` on.
"""

from __future__ import annotations

import importlib
import os
import pickle
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn

ADDRESS = "WARM_PROCESSES"  # the variable with the place of the socket on which forks are asked for
IMPORTED = [
    "torch._inductor.standalone_compile", "torch.fx.experimental.proxy_tensor",
    "torch.fx.passes.dialect.common.cse_pass", "llvmlite.binding", "fedrecall.api.federate",
    "fedrecall.engines.processes.serving", "fedrecall.client.lanes.check",
]  # fmt: skip
NUMBER = struct.Struct("=i")


@contextmanager
def warm_template() -> Iterator[None]:
    """Start the process that others are forked from, and end it."""
    folder = tempfile.mkdtemp(prefix="warm-")
    address = os.path.join(folder, "socket")
    alive, theirs = socket.socketpair()  # it ends with the last process that holds our end
    command = [sys.executable, __file__, address, str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    try:
        if not alive.recv(1):
            raise RuntimeError("the process to fork from did not begin")
        os.environ[ADDRESS] = address
        yield
    finally:
        os.environ.pop(ADDRESS, None)
        alive.close()
        process.wait()
        shutil.rmtree(folder)


class WarmProcess:
    """A forked process, with the methods of `subprocess.Popen` that the engine `processes` calls."""

    def __init__(self, target: Callable[..., object], *arguments: object, files: Sequence[int] = ()) -> None:
        """Call a function of an importable module with arguments, then the numbers of these open files."""
        self._code: int | None = None
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.environ[ADDRESS])
        asked = pickle.dumps((sys.path, os.getcwd(), dict(os.environ), pickle.dumps((target, arguments))))
        socket.send_fds(self._socket, [NUMBER.pack(len(asked))], [*files])
        self._socket.sendall(asked)
        self.pid = self._number(None)

    def _number(self, seconds: float | None) -> int:
        self._socket.settimeout(seconds)
        data = self._socket.recv(NUMBER.size, socket.MSG_WAITALL)
        return NUMBER.unpack(data)[0] if data else -signal.SIGKILL

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            try:
                self._code = self._number(timeout)
            except TimeoutError:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0) from None
            self._socket.close()
        return self._code

    def kill(self) -> None:
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def run_warm(target: Callable[..., object], *arguments: object, seconds: float) -> int | None:
    """Call a function in a process of its own; return its exit code, which is None if time was up."""
    process = WarmProcess(target, *arguments)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()
        process.wait()


def start_worker(
    script: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[WarmProcess, Connection]:
    """Stand in for `fedrecall.engines.processes.connection.start`."""
    ours, theirs = Pipe()
    with theirs:
        return WarmProcess(work, script, arguments, dict(environment), files=[theirs.fileno()]), ours


def work(script: str, arguments: Sequence[str], environment: dict[str, str], end: int) -> None:
    """Do what `python worker_main.py END FOLDER..` does, once it has imported the standard library."""
    from fedrecall.engines.processes import worker_main

    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [script, str(end), *arguments]
    worker_main.main()


# The process that is forked.


def serve(address: str, alive: socket.socket) -> None:
    """Fork for everyone who asks, until nobody is left who could."""
    for name in IMPORTED:
        importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes in between
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        alive.sendall(b"!")
        while not is_over(listener, alive):
            asking, _ = listener.accept()
            if not os.fork():
                listener.close()
                alive.close()
                between(asking)
            asking.close()


def is_over(listener: socket.socket, alive: socket.socket) -> bool:
    """Wait until somebody asks for a fork, or until the test session is gone."""
    return alive in select.select([listener, alive], [], [])[0]


def between(asking: socket.socket) -> NoReturn:
    """Fork once more, wait for that process and tell who asked how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, files, _, _ = socket.recv_fds(asking, NUMBER.size, 8)
    asked = asking.recv(NUMBER.unpack(head)[0], socket.MSG_WAITALL)
    pid = os.fork()
    if not pid:
        asking.close()
        os._exit(called(asked, files))
    for file in files:
        os.close(file)
    with suppress(OSError):
        asking.sendall(NUMBER.pack(pid))
        asking.sendall(NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    os._exit(0)


def called(asked: bytes, files: list[int]) -> int:
    """Call the function in question; return the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: Any = 0
    try:
        sys.path[:], folder, environment, call = pickle.loads(asked)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        target, arguments = pickle.loads(call)
        target(*arguments, *files)
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent)
    sys.modules["warm_processes"] = sys.modules["__main__"]
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
    os._exit(0)  # a second sooner than by the end of all that was imported
