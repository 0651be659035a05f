"""A run's folder: its files, written as the rounds go by, and read back."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from safetensors.torch import save_file

from fedrecall.errors import InputError
from fedrecall.safe_parsing import json_value
from fedrecall.vector import Tensors
from fedrecall.version import __version__
from fedrecall.atomic_files import flush, remove_leftovers, told, unwritten, whole, write_whole

LINES = ("metrics.jsonl", "timings.jsonl", "clients.jsonl", "events.jsonl")


class RunFolder:
    """Writes what a run leaves behind. Nothing is written outside its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[str, FileIO] = {}
        self._lock = FileLock(path / "lock")

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """A new folder; one that holds a run already is not touched."""
        if (path / "recipe.yaml").is_file() and not is_finished(path):
            raise InputError(
                f"the folder {str(path)!r} has an unfinished run; go on with it by: fedrecall resume {path}"
            )
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InputError(f"the folder {str(path)!r} is not empty; choose another with --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"the folder {str(path)!r} cannot be made: {error.strerror}") from None
        return cls(path)

    @classmethod
    def create_new(cls, parent: Path, name: str) -> RunFolder:
        """`parent/name`, or `parent/name-2`, -3, .. if that is taken."""
        number = 1
        while True:
            path = parent / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                number += 1
            except OSError as error:
                raise InputError(f"the folder {str(path)!r} cannot be made: {error.strerror}") from None
            else:
                return cls(path)

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """A folder that holds a run."""
        if not (path / "recipe.yaml").is_file():
            raise InputError(f"{str(path)!r} is not a run's folder: it has no recipe.yaml")
        return cls(path)

    def lock(self) -> None:
        """For this process alone, until it closes the folder or ends, however it ends."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"another process is at work in the folder {str(self.path)!r}") from None
        except OSError as error:
            raise unwritten(self.path / "lock", error) from None

    def cut_back(self, round: int) -> None:
        """Drop what was written of later rounds, half lines too, so that no round is there twice.

        Nothing is dropped before all files are found good up to this round.
        """
        kept = {name: lines_until(self.path / name, round) for name in LINES if (self.path / name).exists()}
        refuse_gaps(self.path / "metrics.jsonl", kept.get("metrics.jsonl", []), round)
        for name, lines in kept.items():
            self.write_text(name, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        for path in (self.path / "forgetting").glob("round-*.npz"):
            number = path.stem.removeprefix("round-")
            if number.isdecimal() and int(number) > round:
                path.unlink()
        for folder in (self.path, self.path / "forgetting"):
            remove_leftovers(folder)

    def write_text(self, name: str, text: str) -> Path:
        """Written beside and renamed, so that a reader never sees half a file."""
        write_whole(self.path / name, text)
        return self.path / name

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self.write_text(name, as_json(value, indent=2) + "\n")

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """One line of a `.jsonl` file, written before the next round begins; on a full disk, no half of it."""
        path, text = self.path / name, (as_json(line) + "\n").encode()
        with told(path):
            if name not in self._open:
                # Without a buffer, which would keep what a full disk refuses and fail again when it is closed.
                self._open[name] = path.open("ab", buffering=0)
        file = self._open[name]
        end = file.seek(0, os.SEEK_END)
        try:
            while text:
                text = text[file.write(text) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                file.truncate(end)
            raise unwritten(path, error) from None

    def flush(self) -> None:
        """All lines on the disk, before a checkpoint that counts on them."""
        for name in self._open:
            with told(self.path / name):
                flush(self.path / name)

    def event(self, kind: str, round: int, message: str) -> None:
        self.append("events.jsonl", {"event": kind, "round": round, "message": message})

    def save_model(self, state: Tensors) -> None:
        """Names and tensors only, so that equal models are equal files."""
        with whole(self.path / "model.safetensors") as beside:
            save_file(state, beside)

    def save_forgetting(self, round: int, arrays: Mapping[str, np.ndarray]) -> None:
        path = self.path / "forgetting" / f"round-{round:05d}.npz"
        with told(path):
            path.parent.mkdir(exist_ok=True)
        with whole(path) as beside:
            np.savez_compressed(beside, **arrays)  # type: ignore[arg-type]

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._lock.release(force=True)


def is_finished(path: Path) -> bool:
    """Did the run in this folder come to its end?"""
    return finished_summary(path) is not None


def finished_summary(path: Path) -> dict[str, Any] | None:
    """The summary of a run that came to its end; None of any other."""
    try:
        summary = json_value((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) and summary.get("status") == "finished" else None


def as_json(value: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(value, allow_nan=False, indent=indent, ensure_ascii=False)
    except ValueError:
        return json.dumps(finite(value), indent=indent, ensure_ascii=False)


def finite(value: Any) -> Any:
    """JSON knows no NaN: what is not a number is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a `.jsonl` file; none if there is no such file."""
    return list(iterate_lines(path)) if path.exists() else []


def lines_until(path: Path, round: int) -> list[dict[str, Any]]:
    """The lines up to a round of a file that a process may have died writing, after that round.

    A line that is not whole before one of them is damage of another kind, which is not passed over.
    """
    found, damaged = [], 0
    for number, text in enumerate(path.read_bytes().split(b"\n"), start=1):
        try:
            line = json_value(text.decode())
            whole = isinstance(line, dict) and type(line.get("round")) is int
        except ValueError:
            whole = False
        if not whole:
            damaged = damaged or number
        elif line["round"] <= round:
            if damaged:
                raise InputError(
                    f"line {damaged} of {str(path)!r} is damaged, and the run goes on after round {round}; put "
                    "the file back from a copy, or take that line out"
                )
            found.append(line)
    return found


def refuse_gaps(path: Path, lines: list[dict[str, Any]], round: int) -> None:
    """The metrics of a run are numbers, in order, and there up to its checkpoint."""
    rounds = [line["round"] for line in lines]
    for line in lines:
        wrong = [key for key, value in line.items() if not is_metric(key, value)]
        if wrong:
            raise InputError(f"{str(path)!r} is damaged: {wrong[0]!r} of round {line['round']} is not a number")
    if rounds != sorted(set(rounds)) or (rounds or [0])[-1] != round:
        raise InputError(
            f"{str(path)!r} is damaged: it does not have the rounds up to {round}, each once and in their order; "
            "put it back from a copy"
        )


def is_metric(key: str, value: Any) -> bool:
    """Numbers, null for those that are not finite, and the clients' ids."""
    return value is None or type(value) in (int, float) or (key == "clients" and isinstance(value, list))


def iterate_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield json_value(line.decode())
            except ValueError:
                raise InputError(f"line {number} of {str(path)!r} is not JSON") from None




