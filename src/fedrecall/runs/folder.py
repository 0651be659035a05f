"""Write the folder of a run."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from safetensors.torch import save

from fedrecall.core.vector import Tensors
from fedrecall.errors import InputError, short_repr
from fedrecall.runs import files
from fedrecall.runs.jsonl import Lines, as_json, finite, jsonl_text, lines_until, refuse_gaps
from fedrecall.runs.reader import finished_summary, refuse_unwritable_name
from fedrecall.runs.records import SUMMARY_DIGEST, Records, with_digest
from fedrecall.storage.atomic_files import (
    delete_file,
    explain_write_errors,
    flush,
    remove_dead_versions,
    remove_leftovers,
    replace_file,
    write_bytes,
    write_error,
    write_text,
)

ANOTHER_FOLDER = "choose another with --out, in Python with out="


class RunFolder:
    """Writes the files of a run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[str, FileIO] = {}
        self._made = False  # the folder itself is new
        self._lock = FileLock(path / files.LOCK)
        self.records = Records(path)

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Create a run's folder; raise an `InputError` if it is not empty."""
        with explain_folder_errors(path):
            if (path / files.RECIPE).is_file() and finished_summary(path) is None:
                raise InputError(
                    f"the folder {str(path)!r} has an unfinished run; go on with it by: "
                    f"fedrecall resume {shlex.quote(str(path))}"
                )
            if path.exists() and not path.is_dir():
                raise InputError(f"{str(path)!r} is a file; a new or an empty folder was expected")
            if path.is_dir() and not all(map(is_of_a_start, path.iterdir())):
                raise InputError(f"the folder {str(path)!r} is not empty; {ANOTHER_FOLDER}")
            new = not path.exists()
            path.mkdir(parents=True, exist_ok=True)
            remove_dead_versions(path / files.RECIPE)
        folder = cls(path)
        folder._made = new
        return folder

    @classmethod
    def create_new(cls, parent: Path, name: str) -> RunFolder:
        """Create `parent/name`, or `parent/name-2`, -3, .. if that exists."""
        with explain_folder_errors(parent):
            parent.mkdir(parents=True, exist_ok=True)
        path, number = parent / name, 1
        while True:
            with explain_folder_errors(path), contextlib.suppress(FileExistsError):
                path.mkdir()
                folder = cls(path)
                folder._made = True
                return folder
            number += 1
            path = parent / f"{name}-{number}"

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        refuse_unwritable_name(path)
        if not (path / files.RECIPE).is_file():
            raise InputError(f"{str(path)!r} is not a run's folder: it has no {files.RECIPE}")
        return cls(path)

    def has_no_round(self) -> bool:
        """Return whether no round has been recorded."""
        try:
            return not (self.path / files.METRICS).stat().st_size
        except FileNotFoundError:
            return True

    def discard(self) -> None:
        """Delete what a run has written to its new folder, and the folder if it was made for the run."""
        self.close()
        with contextlib.suppress(OSError):  # what cannot be deleted stays, as after a crash
            for path in self.path.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            if self._made:
                self.path.rmdir()

    def lock(self) -> None:
        """Lock the folder until this process closes it or ends."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"another process is at work in the folder {str(self.path)!r}") from None
        except OSError as error:
            raise write_error(self.path / files.LOCK, error) from None

    def lines_until(self, round: int) -> dict[str, Lines]:
        """Return the lines of each file up to a round; raise an `InputError` if one of them is damaged."""
        lines = {name: lines_until(self.path / name, round) for name in files.LINES if (self.path / name).exists()}
        refuse_gaps(self.path / files.METRICS, lines.get(files.METRICS, []), round)
        return lines

    def cut_back(self, round: int, lines: Mapping[str, Lines]) -> None:
        """Replace the lines of each file by these, and delete the other files of later rounds."""
        for name, remaining in lines.items():
            self.write_text(name, jsonl_text(remaining))
        for number, path in files.probe_files(self.path).items():
            if number > round:
                delete_file(path, self.path)
        for folder in (self.path, self.path / files.FORGETTING):
            remove_leftovers(folder, self.path)

    def delete(self, name: str) -> None:
        delete_file(self.path / name, self.path)

    def write_text(self, name: str, text: str) -> Path:
        """Write a file atomically; return its path."""
        write_text(self.path / name, text)
        return self.path / name

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        self.write_text(name, as_json(value, indent=2) + "\n")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary with a digest of it, which detects damage."""
        self.write_json(files.SUMMARY, with_digest(finite(summary), SUMMARY_DIGEST))

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """Append a line to a `.jsonl` file; on a full disk, append no part of it."""
        path, text = self.path / name, (as_json(line) + "\n").encode()
        with explain_write_errors(path):
            if name not in self._open:
                # Unbuffered: a buffer would keep what a full disk refuses and fail again on close.
                self._open[name] = FileIO(path, "ab", opener=not_through_a_link)
        file = self._open[name]
        end, left = file.seek(0, os.SEEK_END), text
        try:
            while left:
                left = left[file.write(left) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                file.truncate(end)
            raise write_error(path, error) from None
        self.records.add(name, text)

    def flush(self) -> None:
        """Sync all lines to disk, before a checkpoint that depends on them."""
        for name in self._open:
            with explain_write_errors(self.path / name):
                flush(self.path / name)

    def event(self, kind: str, round: int, message: str) -> None:
        self.append(files.EVENTS, {"event": kind, "round": round, "message": message})

    def save_model(self, state: Tensors) -> None:
        """Save names and tensors only, so that equal models give equal files."""
        write_bytes(self.path / files.MODEL, save(state))

    def save_forgetting(self, round: int, arrays: Mapping[str, np.ndarray]) -> None:
        path = files.probe_file(self.path, round)
        with explain_write_errors(path):
            path.parent.mkdir(exist_ok=True)
        with replace_file(path) as beside:
            np.savez_compressed(beside, **arrays)  # type: ignore[arg-type]
        self.records.add(str(path.relative_to(self.path)), path.read_bytes())

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._lock.release(force=True)


def not_through_a_link(path: str, flags: int) -> int:
    """Open a file but follow no link, through which a foreign folder could redirect lines anywhere."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def is_of_a_start(path: Path) -> bool:
    """Whether a run that was killed before its first file may have left this."""
    return path.name == files.LOCK or fnmatch(path.name, ".recipe.*.part.yaml")


@contextmanager
def explain_folder_errors(path: Path) -> Iterator[None]:
    """Convert errors about a folder into an `InputError`; refuse a name that is not UTF-8."""
    refuse_unwritable_name(path)
    try:
        yield
    except InputError:
        raise
    except FileExistsError as error:
        if path.is_file():
            raise InputError(f"{str(path)!r} is a file; a new or an empty folder was expected") from None
        raise InputError(
            f"the folder {str(path)!r} cannot be made or read: {error.strerror}; {ANOTHER_FOLDER}"
        ) from None
    except (OSError, ValueError) as error:  # a ValueError is about an invalid name
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"the folder {short_repr(str(path))} cannot be made or read: {reason}; {ANOTHER_FOLDER}"
        ) from None
