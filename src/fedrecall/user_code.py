"""Exceptions in the user's own code: which lines of a traceback are theirs."""

from __future__ import annotations

import inspect
import os
import sysconfig
import traceback
from pathlib import Path
from typing import Any

# Files below these are fedrecall's, Python's or a library's.
NOT_THEIRS = tuple(
    folder + os.sep
    for folder in {
        str(Path(__file__).parent),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)
GENERATED = ("<frozen", "<eval_with_key", "<string>")


def is_theirs(file: str) -> bool:
    return not file.startswith((*NOT_THEIRS, *GENERATED))


def has_their_lines(error: BaseException) -> bool:
    return any(is_theirs(frame.filename) for frame in traceback.extract_tb(error.__traceback__))


def source_of(thing: Any) -> str | None:
    """The source of a class or function, if it is the user's own and can be read."""
    try:
        file = inspect.getsourcefile(thing)
        return inspect.getsource(thing) if file is not None and is_theirs(file) else None
    except (TypeError, OSError):  # built in, or typed into an interpreter
        return None


def note_key(error: Exception, key: str, name: str) -> None:
    """Say which key of the recipe led to the code that raised."""
    error.add_note(f"(the recipe's key {key!r} names it: {name!r})")


def their_traceback(error: BaseException) -> str:
    """Its traceback with the user's own lines, and what these called last; all lines, if none is theirs."""
    summary = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = summary
    while part is not None:
        theirs = [at for at, frame in enumerate(part.stack) if is_theirs(frame.filename)]
        if theirs:
            kept = [f for at, f in enumerate(part.stack) if at > theirs[-1] or is_theirs(f.filename)]
            part.stack = traceback.StackSummary.from_list(kept)
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
    return "".join(summary.format())
