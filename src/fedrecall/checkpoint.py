"""The state of a run on disk: what the server holds after a round, and which client states belong to it.

A checkpoint is a safetensors file and a note of its round and checksum. Each is written beside, flushed and
renamed, the note last: a checkpoint without a note is not one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file

from fedrecall.errors import InputError
from fedrecall.vector import Tensors
from fedrecall.version import __version__

KEPT = 2


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


def save(folder: Path, point: Checkpoint) -> None:
    """Write it; the last two are kept."""
    folder.mkdir(exist_ok=True)
    tensors = {f"server.{name}": tensor.contiguous() for name, tensor in point.server.items()}
    tensors |= {f"buffers.{name}": tensor.contiguous() for name, tensor in point.buffers.items()}
    table = [pair for pair in sorted(point.versions.items()) if pair[1]]
    tensors["versions"] = torch.tensor(table, dtype=torch.int32).reshape(len(table), 2)
    path = folder / f"round-{point.round:06d}.safetensors"
    beside = path.with_suffix(".part")
    save_file(tensors, beside)
    settle(beside, path)
    note = {
        "round": point.round,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "fedrecall": point.fedrecall,
        "recipe_sha256": point.recipe_sha256,
        "recipe": point.recipe,
    }
    beside.write_text(json.dumps(note) + "\n", encoding="utf-8")
    settle(beside, path.with_suffix(".json"))
    for old in notes(folder)[:-KEPT]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def settle(beside: Path, path: Path) -> None:
    """On disk first, then under its name."""
    with beside.open("rb+") as file:
        os.fsync(file.fileno())
    beside.replace(path)


def notes(folder: Path) -> list[Path]:
    """The notes of all checkpoints, the oldest first."""
    return sorted(folder.glob("round-*.json"))


def read(note_path: Path) -> Checkpoint:
    """A checkpoint, checked; an `InputError` if anything about it is damaged."""
    path = note_path.with_suffix(".safetensors")
    try:
        note = json.loads(note_path.read_text(encoding="utf-8"))
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != note["sha256"]:
            raise InputError(f"the checkpoint {str(path)!r} is damaged: its checksum is another than noted")
        tensors = load(data)
        versions = {int(client): int(version) for client, version in tensors.pop("versions").tolist()}
        groups: dict[str, Tensors] = {"server": {}, "buffers": {}}
        for name, tensor in tensors.items():
            group, _, key = name.partition(".")
            groups[group][key] = tensor
        digest, recipe, made_by = note["recipe_sha256"], note["recipe"], note["fedrecall"]
        return Checkpoint(int(note["round"]), **groups, versions=versions, recipe_sha256=digest, recipe=recipe,
                          fedrecall=made_by)  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the checkpoint {str(path)!r} is damaged: {type(error).__name__}") from None


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and what is wrong with those after it."""
    wrong: list[str] = []
    for note_path in reversed(notes(folder)):
        try:
            return read(note_path), wrong
        except InputError as error:
            wrong.append(str(error))
    return None, wrong


def drop_after(folder: Path, round: int) -> list[Checkpoint]:
    """Delete the checkpoints of later rounds; the others that are whole, the oldest first."""
    kept = []
    for note_path in notes(folder):
        try:
            point = read(note_path)
        except InputError:
            point = None
        if point is None or point.round > round:
            note_path.unlink()
            note_path.with_suffix(".safetensors").unlink(missing_ok=True)
        else:
            kept.append(point)
    return kept
