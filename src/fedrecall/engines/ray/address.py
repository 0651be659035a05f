"""The check of a cluster's address, which ends in one sentence whatever is at the other end.

Ray itself waits for more than a minute at a port where something else listens, and at some for ever. So another
process joins the cluster first, with a deadline.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import lru_cache

from fedrecall.errors import InputError

ANSWER = 10.0  # seconds for a connection to an address
SHORT = 5.0  # the same for a look at a head that was there before
JOIN = 15.0  # seconds for a process to join the cluster; it takes about two where there is one
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
OF_A_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # would make the process a second driver of a submitted job
OK = "joined"
# A process of its own can be killed; Ray's C++ client holds the interpreter, or ends its process, when it gives up.
PROGRAM = f"""
import logging, sys, warnings
warnings.simplefilter("ignore")
import ray
if sys.argv[2]:
    print(ray.util.get_node_ip_address(), flush=True)
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL, configure_logging=True)
except Exception as error:
    print(" ".join(str(error).split()))
    raise SystemExit(1)
print({OK!r}, flush=True)
"""


def check_address(address: str | None) -> None:
    """Raise an `InputError` if no Ray cluster can be joined at an address; None stands for a Ray of one's own."""
    if address is None:
        return
    if address != "auto":
        refuse_silent(address)
    refuse_what_is_no_cluster(address)


def refuse_silent(address: str) -> None:
    """Raise an `InputError` if nothing answers at HOST:PORT."""
    host, colon, port = address.rpartition(":")
    if address.startswith("ray://") or not colon or not port.isdigit():
        raise InputError(
            f"execution.ray_address is {address!r}; HOST:PORT of the cluster's head was expected, or auto (a Ray "
            "Client address is not enough: start the command on a node of the cluster, or with `ray job submit`)"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"execution.ray_address is {address!r}, which does not answer "
            f"({getattr(error, 'strerror', None) or error}); the address of a running cluster was expected, which "
            "`ray status` shows on its head"
        ) from None


@lru_cache(maxsize=16)  # errors are not cached; a cluster that was joined once need not be tried again
def refuse_what_is_no_cluster(address: str) -> None:
    """Raise an `InputError` if another process cannot join a cluster at the address in time."""
    host = address.rpartition(":")[0]
    environment = {name: value for name, value in os.environ.items() if name != OF_A_JOB}
    words = [sys.executable, "-c", PROGRAM, address, "rewritten" if host in LOCAL_HOSTS else ""]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=JOIN,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches this process alone, which then kills the other
        )
        said, why = done.stdout.split("\n"), f"Ray ended with exit code {done.returncode}"
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
        said = (out if isinstance(out, str) else out.decode(errors="replace")).split("\n")
        why = f"none has answered within {JOIN:.0f} s"
    rewritten = said.pop(0) if host in LOCAL_HOSTS else ""
    if OK in said:
        return
    reason = next((line for line in said if line.strip()), why)[:300]
    raise InputError(
        f"execution.ray_address is {address!r}, where no Ray cluster could be joined: {reason}"
        + rewriting(address, rewritten)
        + "; the address of a running cluster was expected, which `ray status` shows on its head"
    )


def listens(address: str) -> bool:
    """Return whether something listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), SHORT).close()
    except OSError:
        return False
    return True


def rewriting(address: str, node: str) -> str:
    """Return what Ray makes of an address of this machine, if that is another address."""
    if not node or node in LOCAL_HOSTS:
        return ""
    port = address.rpartition(":")[2]
    return (
        f" (Ray takes {address} for {node}:{port}; a head that listens on 127.0.0.1 alone is joined with "
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 in the environment)"
    )
