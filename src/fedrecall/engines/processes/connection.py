"""Connections between the engine and its workers, on this machine only.

One way for all systems: a port on 127.0.0.1 and a key in the workers' environment. Nothing that comes in is
looked at before it has shown the key.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

VARIABLE = "FEDRECALL_WORKER_KEY"


class Door:
    """Where workers come in."""

    def __init__(self) -> None:
        self._key = secrets.token_hex(32)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(0.5)
        self.port = int(self._server.getsockname()[1])

    def key(self) -> dict[str, str]:
        """The variables that a worker's environment must have."""
        return {VARIABLE: self._key}

    def admit(
        self, started: list[subprocess.Popen[bytes]]
    ) -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
        """The workers with their connections, as they come in; those that end before they do are left out."""
        expected = {process.pid: process for process in started}
        while expected:
            try:
                accepted, _ = self._server.accept()
            except TimeoutError:
                expected = {pid: process for pid, process in expected.items() if process.poll() is None}
                continue
            connection = over(accepted)
            pid = self._shown_key(connection)
            if pid in expected:
                yield expected.pop(pid), connection
            else:
                connection.close()

    def _shown_key(self, connection: Connection) -> int:
        """The process number that came with the right key; -1 for any other visitor."""
        try:
            shown, _, pid = (
                connection.recv_bytes(200).decode().partition(" ") if connection.poll(5) else ("", "", "")
            )
        except (OSError, EOFError, UnicodeDecodeError):
            return -1
        return int(pid) if secrets.compare_digest(shown, self._key) else -1

    def close(self) -> None:
        self._server.close()


def connect(port: int) -> Connection:
    """The worker's side."""
    connection = over(socket.create_connection(("127.0.0.1", port)))
    connection.send_bytes(f"{os.environ.pop(VARIABLE)} {os.getpid()}".encode())
    return connection


def over(opened: socket.socket) -> Connection:
    opened.settimeout(None)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # tasks are short and waited for
    return Connection(opened.detach())


def receive(connection: Connection) -> Any:
    """The next message; an `EOFError` if the other side is gone, also in the middle of a message."""
    try:
        return connection.recv()
    except OSError as error:
        raise EOFError from error
