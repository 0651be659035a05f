"""A real federation on this machine, by the commands of docs/deploy.md: SuperLink and SuperNodes as processes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = "127.0.0.1"
BIN = Path(sys.executable).parent
PATH = f"{BIN}{os.pathsep}{os.environ['PATH']}"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
APP, CERTIFICATES, SUPERLINK, KEYS, SUPERNODE, RUN, RESUME = re.findall(r"```console\n(.*?)\n```", PAGE, re.DOTALL)
(CONFIG,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HERE, 0))
        return int(found.getsockname()[1])


class RealFederation:
    """Its processes, each the leader of a group that is ended as a whole. All happens in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, **QUIET, "FLWR_HOME": str(folder / "home"), "PATH": PATH}
        (folder / "home").mkdir(parents=True)
        config = CONFIG.replace("/path/to", str(folder)).replace("8000", str(self.port))
        (folder / "home" / "config.toml").write_text(config)

    def start(self) -> None:
        for block in (APP, CERTIFICATES):
            for line in block.splitlines():
                self.do(line)
        self._begin("superlink", SUPERLINK)
        self._wait_until_healthy()

    def do(self, line: str, seconds: float = 300) -> str:
        """The output of a command of the page, which must succeed."""
        done = subprocess.run(
            line,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def _begin(self, name: str, line: str) -> subprocess.Popen[bytes]:
        """Start a command of the page, with ports that are free."""
        words = shlex.split(line.replace("8000", str(self.port)).replace("9100", str(free_port())))
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / words[0]), *words[1:]],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def _wait_until_healthy(self, seconds: float = 60) -> None:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        end = time.monotonic() + seconds
        while True:
            try:
                urllib.request.urlopen(f"https://{HERE}:{self.port}/health", timeout=2, context=context)
                return
            except (urllib.error.URLError, OSError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def node(self, client: int, name: str, *, registered: bool = True, tls: bool = True) -> None:
        """Start a SuperNode with a key of its own, as the page does; or without a key that is known, or without
        TLS."""
        make_key, register = KEYS.replace("node0", name).splitlines()
        self.do(make_key)
        if registered:
            self.do(register)
        line = SUPERNODE.replace("supernode-private-key node0", f"supernode-private-key {name}")
        line = line.replace("partition-id=0", f"forgetting=true partition-id={client}")
        line = line.replace("client-0.npz", f"client-{client}.npz").replace("state/0", f"state/{client}")
        if not tls:
            line = line.replace("--root-certificates ca.crt", "--insecure")
        self.nodes[client] = self._begin(name, line)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        for process in reversed(self.processes):
            end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue
        if number == signal.SIGTERM:
            time.sleep(0.5)  # for those that it started


@contextmanager
def real_federation(folder: Path) -> Iterator[RealFederation]:
    federation = RealFederation(folder)
    try:
        federation.start()
        yield federation
    finally:
        federation.stop()
