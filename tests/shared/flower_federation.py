"""A real federation on this machine: SuperLink and SuperNodes as processes, with TLS and keys made here."""

from __future__ import annotations

import os
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
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HERE = "127.0.0.1"
BIN = Path(sys.executable).parent
PEM = serialization.Encoding.PEM
PLAIN = serialization.NoEncryption()


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HERE, 0))
        return int(found.getsockname()[1])


def write_certificates(folder: Path) -> None:
    """`ca.crt`, and a server's `server.pem` and `server.key` for this machine, as docs/deploy.md makes them."""
    ca_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's authority")])
    now, ca = datetime.now(UTC), x509.BasicConstraints(ca=True, path_length=None)

    def begun(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder(ca_name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )

    authority = begun(ca_name, ca_key).add_extension(ca, critical=True).sign(ca_key, hashes.SHA384())
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(IPv4Address(HERE))])
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    server = begun(server_name, server_key).add_extension(names, critical=False).sign(ca_key, hashes.SHA384())
    (folder / "ca.crt").write_bytes(authority.public_bytes(PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(PEM))
    (folder / "server.key").write_bytes(
        server_key.private_bytes(PEM, serialization.PrivateFormat.TraditionalOpenSSL, PLAIN)
    )


def write_key(path: Path) -> None:
    """A node's key and, beside it, its public half: ECDSA in OpenSSH's format."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, PLAIN))
    path.chmod(0o600)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public)


class RealFederation:
    """Its processes, each the leader of a group that is ended as a whole."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        (folder / "home").mkdir(parents=True)
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "real"\n\n[superlink.real]\naddress = "{HERE}:{self.port}"\n'
            f'root-certificates = "{folder / "ca.crt"}"\n'
        )

    def start(self) -> None:
        write_certificates(self.folder)
        tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        self._begin(
            "superlink",
            "flower-superlink",
            *["--host", HERE, "--port", str(self.port), *tls],
            *["--enable-supernode-auth", "--disable-runtime-dependency-installation"],
        )
        self._wait_until_healthy()

    def _begin(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
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

    def flwr(self, *words: str, seconds: float = 300) -> str:
        """The output of one of Flower's commands, which must succeed."""
        done = subprocess.run(
            [str(BIN / "flwr"), *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def node(self, client: int, config: str, *, registered: bool = True, name: str = "") -> None:
        """Start a SuperNode with a key of its own."""
        name = name or f"node{client}"
        key = self.folder / name
        if not key.exists():
            write_key(key)
            if registered:
                self.flwr("supernode", "register", f"{name}.pub", "real")
        self.nodes[client] = self._begin(
            f"{name}-log",
            "flower-supernode",
            *["--superlink", f"{HERE}:{self.port}", "--root-certificates", "ca.crt"],
            *["--port", str(free_port()), "--auth-supernode-private-key", name],
            *["--node-config", config],
        )

    def plain_node(self, config: str) -> subprocess.Popen[bytes]:
        """A SuperNode that speaks without TLS."""
        write_key(self.folder / "plain")
        self.flwr("supernode", "register", "plain.pub", "real")
        return self._begin(
            "plain-log",
            "flower-supernode",
            *["--insecure", "--superlink", f"{HERE}:{self.port}", "--port", str(free_port())],
            *["--auth-supernode-private-key", "plain", "--node-config", config],
        )

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
