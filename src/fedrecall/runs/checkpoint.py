"""Checkpoints: the server's state after a round and the versions of the client states that belong to it.

A checkpoint is a safetensors file and a note of its round and checksum. Both are written atomically, the note
last: a checkpoint without a note does not count.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from safetensors.torch import save as save_tensors

from fedrecall.core.vector import Tensors
from fedrecall.errors import InputError
from fedrecall.runs.client_states import StateFiles
from fedrecall.runs.jsonl import Lines
from fedrecall.runs.records import NOTE_DIGEST, Noted, before_and_after, with_digest, without_digest
from fedrecall.runs.schema import CheckpointNote, check
from fedrecall.storage.atomic_files import delete_file, explain_write_errors, remove_leftovers, write_bytes, write_text
from fedrecall.storage.safe_parsing import json_value, regular_file
from fedrecall.version import __version__

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """The state after a round: all that later rounds depend on."""

    round: int
    server: Tensors
    buffers: Tensors
    versions: dict[int, int]  # of the clients' states
    recipe_sha256: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    fedrecall: str = __version__
    best: Tensors = field(default_factory=dict)  # the best model of an earlier round, with `keep: best`
    records: Noted = field(default_factory=dict)  # of the recorded files, up to this round
    device: str = "cpu"  # that its clients trained on


def save(folder: Path, point: Checkpoint) -> None:
    """Write a checkpoint and keep the last two; if that fails, the earlier ones are unchanged."""
    groups = {"server": point.server, "buffers": point.buffers, "best": point.best}
    # Copies: an algorithm's state may hold one tensor under two names, which safetensors refuses.
    tensors = {
        f"{group}.{name}": tensor.clone(memory_format=torch.contiguous_format)
        for group, members in groups.items()
        for name, tensor in members.items()
    }
    table = [pair for pair in sorted(point.versions.items()) if pair[1]]
    tensors["versions"] = torch.tensor(table, dtype=torch.int32).reshape(len(table), 2)
    note_path = note_of(folder, point.round)
    path = note_path.with_suffix(".safetensors")
    with explain_write_errors(path):
        folder.mkdir(exist_ok=True)
    content = save_tensors(tensors)
    write_bytes(path, content)
    note = {"round": point.round, "sha256": hashlib.sha256(content).hexdigest()}
    noted = ("fedrecall", "recipe_sha256", "recipe", "records", "device")
    try:
        write_note(note_path, {**note, **{key: getattr(point, key) for key in noted}})
    except BaseException:  # without its note the file is useless
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    read(note_path)  # verify this one before an older one is deleted
    for old in notes(folder)[:-KEPT]:
        delete(old)


def write_note(path: Path, note: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(with_digest(note, NOTE_DIGEST)) + "\n")


def expect_rewritten(
    folder: Path, points: Sequence[Checkpoint], before: Mapping[str, Lines], after: Mapping[str, Lines]
) -> None:
    """Make the notes of checkpoints valid before and after the lines of a run are rewritten."""
    for point in points:
        records = before_and_after(point.records, before, after, point.round)
        if records != point.records:
            path = note_of(folder, point.round)
            write_note(path, {**read_note(path), "records": records})


def delete(note_path: Path) -> None:
    """Delete a checkpoint, its note first, without which it does not count."""
    for path in (note_path, note_path.with_suffix(".safetensors")):
        delete_file(path, note_path.parent.parent)


def note_of(folder: Path, round: int) -> Path:
    return folder / f"round-{round:06d}.json"


def notes(folder: Path) -> list[Path]:
    """Return the notes of all checkpoints, oldest first."""
    return sorted(folder.glob("round-*.json"))


def read(note_path: Path) -> Checkpoint:
    """Return a checkpoint; raise an `InputError` if it is damaged."""
    path = note_path.with_suffix(".safetensors")
    try:
        note = read_note(note_path)
        data = regular_file(path).read_bytes()
        if hashlib.sha256(data).hexdigest() != note["sha256"]:
            raise InputError("its checksum is another than noted")
        tensors = load(data)
        versions = {int(client): int(version) for client, version in tensors.pop("versions").tolist()}
        groups: dict[str, Tensors] = {"server": {}, "buffers": {}, "best": {}}
        for name, tensor in tensors.items():
            group, _, key = name.partition(".")
            groups[group][key] = tensor
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        reason = str(error) if isinstance(error, InputError) else type(error).__name__
        raise InputError(f"the checkpoint {str(path)!r} is damaged: {reason}") from None
    del note["sha256"]
    server, buffers, best = groups.values()
    return Checkpoint(**note, server=server, buffers=buffers, best=best, versions=versions)


def read_note(path: Path) -> dict[str, Any]:
    """Return the note of a checkpoint without its digest, which the oldest notes lack."""
    note = json_value(regular_file(path).read_text(encoding="utf-8"))
    check("its note", note, CheckpointNote)
    note = without_digest(note, NOTE_DIGEST)
    if path != note_of(path.parent, note["round"]):
        raise InputError("its note is that of another round")
    return note


def newest_note(folder: Path) -> dict[str, Any] | None:
    """Return the newest intact note; None if there is none."""
    for path in reversed(notes(folder)):
        with contextlib.suppress(OSError, ValueError):
            return read_note(path)
    return None


def newest(
    folder: Path, states: StateFiles | None = None, before: float = math.inf
) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest intact checkpoint of a round before this one, and the errors of later ones.

    With `states` the client states that belong to it must be intact, too.
    """
    wrong: list[str] = []
    for note_path in reversed(notes(folder)):
        try:
            point = read(note_path)
            if states is not None:
                states.check(point.versions)
            if point.round < before:
                return point, wrong
        except InputError as error:
            wrong.append(str(error))
    return None, wrong


def drop_after(folder: Path, round: int) -> list[Checkpoint]:
    """Delete later, damaged and partial checkpoints; return the last two that remain, oldest first."""
    intact = []
    for note_path in notes(folder):
        point = None
        with contextlib.suppress(InputError):
            point = read(note_path)
        if point is None or point.round > round:
            delete(note_path)
        else:
            intact.append(point)
    while len(intact) > KEPT:  # a process was killed before it deleted the oldest
        delete(note_of(folder, intact.pop(0).round))
    for path in folder.glob("round-*.safetensors"):  # left by a process killed before it wrote the note
        if not path.with_suffix(".json").exists():
            delete_file(path, folder.parent)
    remove_leftovers(folder, folder.parent)
    return intact
