"""A run's folder: its files, written as the rounds go by, and read back."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from filelock import FileLock, Timeout
from safetensors.torch import save_file

from fedrecall.errors import InputError
from fedrecall.vector import Tensors
from fedrecall.version import __version__


class RunFolder:
    """Writes what a run leaves behind. Nothing is written outside its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[str, TextIO] = {}
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

    def cut_back(self, round: int) -> None:
        """Drop what was written of later rounds, half lines too, so that no round is there twice."""
        for name in ("metrics.jsonl", "timings.jsonl", "clients.jsonl", "events.jsonl"):
            if (self.path / name).exists():
                kept = [line for line in whole_lines(self.path / name) if line["round"] <= round]
                self.write_text(name, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept))
        for path in (self.path / "forgetting").glob("round-*.npz"):
            if int(path.stem.removeprefix("round-")) > round:
                path.unlink()

    def write_text(self, name: str, text: str) -> Path:
        """Written beside and renamed, so that a reader never sees half a file."""
        path = self.path / name
        beside = path.with_name(f".{name}.part")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
        return path

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self.write_text(name, json.dumps(finite(value), indent=2, ensure_ascii=False) + "\n")

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """One line of a `.jsonl` file, on disk before the next round begins."""
        if name not in self._open:
            self._open[name] = (self.path / name).open("a", encoding="utf-8")
        self._open[name].write(json.dumps(finite(line), ensure_ascii=False) + "\n")
        self._open[name].flush()

    def event(self, kind: str, round: int, message: str) -> None:
        self.append("events.jsonl", {"event": kind, "round": round, "message": message})

    def save_model(self, state: Tensors) -> None:
        """Names and tensors only, so that equal models are equal files."""
        save_file(state, self.path / "model.safetensors")

    def save_forgetting(self, round: int, arrays: Mapping[str, np.ndarray]) -> None:
        folder = self.path / "forgetting"
        folder.mkdir(exist_ok=True)
        np.savez_compressed(folder / f"round-{round:05d}.npz", **arrays)  # type: ignore[arg-type]

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._lock.release()


def is_finished(path: Path) -> bool:
    """Did the run in this folder come to its end?"""
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("status") == "finished"


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


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that a process may have died writing: up to the first that is not whole."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            value = json.loads(line)
            found.append({**value, "round": int(value["round"])})
        except (ValueError, KeyError, TypeError):
            break
    return found


def iterate_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield json.loads(line)
            except ValueError:
                raise InputError(f"line {number} of {str(path)!r} is not JSON") from None


def environment() -> dict[str, Any]:
    """What the bits of a run depend on beside the recipe."""
    return {
        "fedrecall": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": f"{sys.platform} {platform.machine()}",
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": os.cpu_count(),
    }


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
