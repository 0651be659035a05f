"""The state of a run on disk: what the server holds after a round, and which client states belong to it.

A checkpoint is a safetensors file and a note of its round and checksum. Each is written beside, flushed and
renamed, the note last: a checkpoint without a note is not one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from safetensors.torch import save as save_tensors

from fedrecall.atomic_files import delete_file, explain_write_errors, remove_leftovers, replace_file, write_text
from fedrecall.errors import InputError
from fedrecall.runs.client_states import StateFiles
from fedrecall.runs.lines import Lines
from fedrecall.runs.records import Noted, before_and_after, tree_digest
from fedrecall.safe_parsing import json_value, regular_file
from fedrecall.vector import Tensors
from fedrecall.version import __version__

KEPT = 2
NOTED = {"round", "sha256", "fedrecall", "recipe_sha256", "recipe"}
SINCE = {"records", "device"}  # that older notes lack


@dataclass(frozen=True)
class Checkpoint:
    """All that the rounds after this one depend on."""

    round: int
    server: Tensors
    buffers: Tensors
    versions: dict[int, int]  # of the clients' states
    recipe_sha256: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    fedrecall: str = __version__
    best: Tensors = field(default_factory=dict)  # the best model of an earlier round, with `keep: best`
    records: Noted = field(default_factory=dict)  # of the files that are recorded, up to this one
    device: str = "cpu"  # on which its clients were trained


def save(folder: Path, point: Checkpoint) -> None:
    """Write it; the last two are kept. Where that fails, those that were there are as they were."""
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
    with replace_file(path) as beside:
        beside.write_bytes(content)
    try:
        note = {
            "round": point.round,
            "sha256": hashlib.sha256(content).hexdigest(),
            "fedrecall": point.fedrecall,
            "recipe_sha256": point.recipe_sha256,
            "recipe": point.recipe,
            "records": point.records,
            "device": point.device,
        }
        write_note(note_path, note)
    except BaseException:  # without its note it is room that is lost
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    read(note_path)  # before an older one goes: is this one on the disk as it should be?
    for old in notes(folder)[:-KEPT]:
        delete(old)


def write_note(path: Path, note: Mapping[str, Any]) -> None:
    write_text(path, json.dumps({**note, "note_sha256": tree_digest(note)}) + "\n")


def expect_rewritten(
    folder: Path, points: Sequence[Checkpoint], before: Mapping[str, Lines], after: Mapping[str, Lines]
) -> None:
    """Make the notes of checkpoints hold before and after the lines of a run are rewritten."""
    for point in points:
        records = before_and_after(point.records, before, after, point.round)
        if records != point.records:
            path = note_of(folder, point.round)
            write_note(path, {**read_note(path), "records": records})


def delete(note_path: Path) -> None:
    """A checkpoint: its note first, without which it is none."""
    for path in (note_path, note_path.with_suffix(".safetensors")):
        delete_file(path, note_path.parent.parent)


def note_of(folder: Path, round: int) -> Path:
    return folder / f"round-{round:06d}.json"


def notes(folder: Path) -> list[Path]:
    """The notes of all checkpoints, the oldest first."""
    return sorted(folder.glob("round-*.json"))


def read(note_path: Path) -> Checkpoint:
    """A checkpoint, checked; an `InputError` if anything about it is damaged."""
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
        digest, recipe, made_by = note["recipe_sha256"], note["recipe"], note["fedrecall"]
        return Checkpoint(int(note["round"]), **groups, versions=versions, recipe_sha256=digest, recipe=recipe,
                          fedrecall=made_by, records=note.get("records", {}),
                          device=note.get("device", "cpu"))  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        reason = str(error) if isinstance(error, InputError) else type(error).__name__
        raise InputError(f"the checkpoint {str(path)!r} is damaged: {reason}") from None


def read_note(path: Path) -> dict[str, Any]:
    note = json_value(regular_file(path).read_text(encoding="utf-8"))
    if not isinstance(note, dict) or not isinstance(note.get("recipe"), dict):
        raise InputError("its note has no recipe")
    own = note.pop("note_sha256", None)  # notes had none at first, and then no other key than these
    if (
        set(note) - SINCE != NOTED
        or own not in (None, tree_digest(note))
        or f"round-{note['round']:06d}" != path.stem
    ):
        raise InputError("its note is not as it was written")
    return note


def newest_note(folder: Path) -> dict[str, Any] | None:
    """Of the newest checkpoint whose note is whole."""
    for path in reversed(notes(folder)):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return read_note(path)
    return None


def newest(folder: Path, states: StateFiles | None = None) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, as are its clients' states; and what is wrong with the later ones."""
    wrong: list[str] = []
    for note_path in reversed(notes(folder)):
        try:
            point = read(note_path)
            if states is not None:
                states.check(point.versions)
            return point, wrong
        except InputError as error:
            wrong.append(str(error))
    return None, wrong


def drop_after(folder: Path, round: int) -> list[Checkpoint]:
    """Delete the checkpoints of later rounds, and what is no checkpoint; the last two of the others, the oldest
    first."""
    kept = []
    for note_path in notes(folder):
        try:
            point = read(note_path)
        except InputError:
            point = None
        if point is None or point.round > round:
            delete(note_path)
        else:
            kept.append(point)
    while len(kept) > KEPT:  # of a process that was killed before it deleted the oldest
        delete(note_of(folder, kept.pop(0).round))
    for path in folder.glob("round-*.safetensors"):  # of a process that was killed before it wrote the note
        if not path.with_suffix(".json").exists():
            delete_file(path, folder.parent)
    remove_leftovers(folder, folder.parent)
    return kept
