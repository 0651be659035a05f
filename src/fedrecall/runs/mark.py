"""The mark of a run: this user made it, in this folder of this machine, of this code.

It is a keyed digest of these. In a copy of the folder it is that of another place, and without the user's key
nobody can make one.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrecall.atomic_files import write_text
from fedrecall.errors import InputError
from fedrecall.runs import files
from fedrecall.runs.reader import read_tree
from fedrecall.runs.user_key import user_key
from fedrecall.safe_parsing import json_value

VERSION = 1  # of what is marked
MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")


def leave_mark(run: Path, code: Mapping[str, Any]) -> None:
    """Mark a run that names code of the user's. Where that cannot be done it has no mark, and its resume asks."""
    if code:
        with contextlib.suppress(InputError):
            mark = mark_of(run, code, user_key(make=True))
            write_text(run / files.MARK, json.dumps({"mark": mark}) + "\n")


def why_not_own(run: Path, code: Mapping[str, Any]) -> str | None:
    """Why a run that names this code is not known as one that this user made here; None if it is."""
    try:
        found = read_tree(run / files.MARK, json_value)
        if found is None:
            return f"it has no mark, {files.MARK}"
        expected = mark_of(run, code, user_key(make=False))
    except ValueError as error:  # an `InputError`, or a value of the recipe that JSON has not
        return str(error)
    if hmac.compare_digest(str(found.get("mark")).encode(), expected.encode()):
        return None
    return f"its mark, {files.MARK}, is of another user, machine or folder, or of other code"


def mark_of(run: Path, code: Mapping[str, Any], key: bytes) -> str:
    marked = {"version": VERSION, "folder": str(run.resolve()), "machine": machine(), "code": code}
    return hmac.new(key, json.dumps(marked, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def machine() -> str:
    """The system's name for this machine: a home folder may be that of several. Nothing where it has none."""
    for path in MACHINE_IDS:
        with contextlib.suppress(OSError, ValueError):
            if found := Path(path).read_text(encoding="ascii").strip():
                return found
    return ""
