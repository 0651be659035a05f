"""The ledger of the runs that this user made: their folders and code. Only this user can write to it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platformdirs import user_state_path

from fedrecall.errors import InputError
from fedrecall.storage.atomic_files import PRIVATE, is_only_ours
from fedrecall.storage.safe_parsing import reason_of

LEDGER = "runs.jsonl"
WRITE = 0o022  # write permission of group and others


def record(run: Path, code: Mapping[str, Any]) -> None:
    """Add a run that names user code to the ledger. If that fails, the run continues, but its resume asks."""
    if not code:
        return
    with contextlib.suppress(OSError, ValueError):
        entry, path = entry_of(run, code), ledger_path()
        if entry in entries_of(path):
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags, PRIVATE)) as file:
            file.write(b"\n" + entry)  # one write; "\n" ends a partial line of another process


def unknown_reason(run: Path, code: Mapping[str, Any]) -> str | None:
    """Return why a run with this code is not known to be this user's; None if it is."""
    try:
        if entry_of(run, code) in entries_of(ledger_path()):
            return None
    except ValueError as error:  # an `InputError`, or an integer with too many digits to convert
        return str(error)
    return "your ledger does not list this folder with this code"


def entry_of(run: Path, code: Mapping[str, Any]) -> bytes:
    """Return the line of a run: pure ASCII, without line breaks."""
    digest = hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()
    return json.dumps([str(run.resolve()), digest]).encode()


def entries_of(path: Path) -> list[bytes]:
    """Return the ledger's lines; raise an `InputError` if others could have written them."""
    try:
        folder, file = path.parent.stat(), path.lstat()
        if stat.S_ISREG(file.st_mode) and is_only_ours(file, WRITE) and is_only_ours(folder, WRITE):
            return path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"the ledger {str(path)!r} cannot be read: {reason_of(error)}") from None
    raise InputError(
        f"the ledger {str(path)!r} is not trusted: expected a regular file that, as its folder, only you can write"
    )


def ledger_path() -> Path:
    """Return the path of the ledger: in FEDRECALL_STATE, or in the user's state folder."""
    try:
        folder = Path(os.environ.get("FEDRECALL_STATE") or user_state_path("fedrecall", appauthor=False))
    except RuntimeError:
        raise InputError("you have no home folder for the ledger; name a folder in FEDRECALL_STATE") from None
    if not folder.is_absolute():  # the working folder may belong to anybody
        raise InputError(f"expected an absolute path in FEDRECALL_STATE, got {str(folder)!r}")
    return folder / LEDGER
