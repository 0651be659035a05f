"""The state of a run on disk: what the server holds after a round, and which client states belong to it.

A checkpoint is a safetensors file and a note of its round and checksum. Each is written beside, flushed and
renamed, the note last: a checkpoint without a note is not one.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import torch
from safetensors.torch import save_file

from fedrecall.vector import Tensors

KEPT = 2


def save(
    folder: Path, round: int, server: Tensors, buffers: Tensors, versions: dict[int, int], recipe: str
) -> None:
    """Write the checkpoint of a round; the last two are kept."""
    folder.mkdir(exist_ok=True)
    tensors = {f"server.{name}": tensor.contiguous() for name, tensor in server.items()}
    tensors |= {f"buffers.{name}": tensor.contiguous() for name, tensor in buffers.items()}
    table = [pair for pair in sorted(versions.items()) if pair[1]]
    tensors["versions"] = torch.tensor(table, dtype=torch.int32).reshape(len(table), 2)
    path = folder / f"round-{round:06d}.safetensors"
    beside = path.with_suffix(".part")
    save_file(tensors, beside)
    settle(beside, path)
    note = {"round": round, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "recipe_sha256": recipe}
    beside.write_text(json.dumps(note) + "\n", encoding="utf-8")
    settle(beside, path.with_suffix(".json"))
    for old in sorted(folder.glob("round-*.json"))[:-KEPT]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def settle(beside: Path, path: Path) -> None:
    """On disk first, then under its name."""
    with beside.open("rb+") as file:
        os.fsync(file.fileno())
    beside.replace(path)
