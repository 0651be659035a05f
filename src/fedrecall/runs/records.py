"""Digests that detect damage in a run's recorded files, checkpoint notes and summaries."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedrecall.errors import InputError
from fedrecall.runs import files
from fedrecall.runs.identity import hash_of
from fedrecall.runs.jsonl import Lines, jsonl_text

NEEDED = (files.METRICS, files.CLIENTS)  # later results depend on them
SUMMARY_DIGEST, NOTE_DIGEST = "sha256", "note_sha256"  # the keys of a summary's and a note's own digests

# By file: its size and SHA-256; `or` has those after a rewrite, of a file that is being rewritten.
Noted = Mapping[str, Mapping[str, Any]]


def with_digest(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the tree with its digest under `key`."""
    return {**tree, key: hash_of(tree)}


def without_digest(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the tree without its digest; raise an `InputError` if the digest does not match."""
    content = {name: value for name, value in tree.items() if name != key}
    if tree.get(key) not in (None, hash_of(content)):
        raise InputError("it is not as it was written")
    return content


class Records:
    """Digests of the files that a run records, kept up to date while it writes them."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._bytes: defaultdict[str, int] = defaultdict(int)
        self._digests: defaultdict[str, Any] = defaultdict(hashlib.sha256)

    def add(self, name: str, content: bytes) -> None:
        """Update the digest of a file with content written to it."""
        self._bytes[name] += len(content)
        self._digests[name].update(content)

    def recall(self) -> None:
        """Restart the digests from the files in the folder."""
        self._bytes.clear()
        self._digests.clear()
        paths = [self.run / name for name in (*files.LINES, *files.DESCRIPTIONS)]
        for path in (*paths, *files.probe_files(self.run).values()):
            if path.is_file():
                self.add(str(path.relative_to(self.run)), path.read_bytes())

    def note(self) -> dict[str, dict[str, Any]]:
        """Return the sizes and digests of the files, for the note of a checkpoint."""
        return {
            name: {"bytes": self._bytes[name], "sha256": digest.hexdigest()}
            for name, digest in sorted(self._digests.items())
        }


def before_and_after(noted: Noted, before: Mapping[str, Lines], after: Mapping[str, Lines], round: int) -> Noted:
    """Return a note of the files after a round that is valid before and after their lines are rewritten.

    A process that is killed in between leaves some files old and others new.
    """
    both = dict(noted)
    for name in noted:
        if before.get(name) != after.get(name):
            old, new = (note_of_lines(lines[name], round) for lines in (before, after))
            both[name] = {**old, "or": new} if old != new else noted[name]
    return both


def note_of_lines(lines: Lines, round: int) -> dict[str, Any]:
    """Return the note of a file with these lines up to a round."""
    return note_of_content(jsonl_text(line for line in lines if line["round"] <= round).encode())


def note_of_content(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def changed_since(run: Path, noted: Noted) -> list[str]:
    """Return the recorded files that are missing or do not begin with the noted content."""
    return [name for name, note in noted.items() if not begins_with(run / name, (note, note.get("or") or note))]


def begins_with(path: Path, notes: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a file's content begins with the content of one of the notes."""
    try:
        content = path.read_bytes() if path.is_file() else b""
    except OSError:
        content = b""
    return any(note_of_content(content[: note["bytes"]]).items() <= note.items() for note in notes)


def check_records(run: Path, noted: Noted, round: int, *, force: bool) -> list[str]:
    """Return warnings about changed files; raise an `InputError` if later results depend on one."""
    changed = changed_since(run, noted)
    needed = [name for name in changed if name in NEEDED]
    if needed and not force:
        raise InputError(
            f"{str(run / needed[0])!r} is missing or not as it was after round {round}, and later numbers depend "
            "on it; put it back from a copy, or --force goes on all the same"
        )
    return [f"{name} is missing or not as it was after round {round}" for name in changed]
