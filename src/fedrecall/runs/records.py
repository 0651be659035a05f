"""Digests of what a run has recorded, by which a checkpoint tells whether its records are as they were."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrecall.errors import InputError
from fedrecall.runs import files
from fedrecall.runs.lines import Lines, as_text

NEEDED = (files.METRICS, files.CLIENTS)  # later numbers depend on them

OWN_DIGEST = "sha256"  # the key of a summary's own

# By file: its bytes and their SHA-256; `or` has those that it will have, of a file that is being rewritten.
Noted = Mapping[str, Mapping[str, Any]]


def tree_digest(tree: Mapping[str, Any]) -> str:
    """Of keys and values, in whatever order and layout they are written."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


@dataclass
class Digest:
    """Of all that a file holds so far."""

    length: int = 0
    sha256: Any = field(default_factory=hashlib.sha256)

    def add(self, content: bytes) -> None:
        self.length += len(content)
        self.sha256.update(content)

    def note(self) -> dict[str, Any]:
        return {"bytes": self.length, "sha256": self.sha256.hexdigest()}


class Records:
    """Of each file of a run that is recorded while it goes, and of those that say what is run."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._digests: dict[str, Digest] = {}

    def add(self, name: str, content: bytes) -> None:
        """What was appended to a file, or written to it."""
        self._digests.setdefault(name, Digest()).add(content)

    def recall(self) -> None:
        """Take up what is in a folder, as it is now."""
        paths = [self.run / name for name in (*files.LINES, *files.DESCRIPTIONS)]
        paths += files.probe_files(self.run).values()
        self._digests = {}
        for path in paths:
            if path.is_file():
                self.add(str(path.relative_to(self.run)), path.read_bytes())

    def note(self) -> dict[str, dict[str, Any]]:
        """For a checkpoint."""
        return {name: digest.note() for name, digest in sorted(self._digests.items())}


def before_and_after(noted: Noted, before: Mapping[str, Lines], after: Mapping[str, Lines], round: int) -> Noted:
    """Return a note of the files after a round that holds before and after their lines are rewritten.

    A process that is killed in between leaves some files as they were and others as they will be.
    """
    both = {}
    for name in [name for name in noted if before.get(name) != after.get(name)]:
        old, new = (noted_lines(lines[name], round) for lines in (before, after))
        if old != new:
            both[name] = {**old, "or": new}
    return {**noted, **both}


def noted_lines(lines: Lines, round: int) -> dict[str, Any]:
    """Return the note of a file with these lines, up to a round."""
    digest = Digest()
    digest.add(as_text(line for line in lines if line["round"] <= round).encode())
    return digest.note()


def changed_since(run: Path, noted: Noted) -> list[str]:
    """Return the recorded files that do not begin with what was noted, or are missing."""
    found = []
    for name, note in noted.items():
        path = run / name
        try:
            content = path.read_bytes() if path.is_file() else b""
        except OSError:
            content = b""
        if not any(begins_with(content, one) for one in (note, note.get("or", note))):
            found.append(name)
    return found


def begins_with(content: bytes, note: Mapping[str, Any]) -> bool:
    """Whether a file begins with what was noted."""
    begin = content[: note["bytes"]]
    return bool(len(begin) == note["bytes"] and hashlib.sha256(begin).hexdigest() == note["sha256"])


def check_records(run: Path, noted: Noted, round: int, *, force: bool) -> list[str]:
    """Sentences about records that are not as they were; an `InputError` where later numbers depend on them."""
    changed = changed_since(run, noted)
    needed = [name for name in changed if name in NEEDED]
    if needed and not force:
        raise InputError(
            f"{str(run / needed[0])!r} is missing or not as it was after round {round}, and later numbers depend "
            "on it; put it back from a copy, or --force goes on all the same"
        )
    return [f"{name} is missing or not as it was after round {round}" for name in changed]
