"""The user's own code: import by name, and its lines in tracebacks."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
import traceback
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedrecall.errors import InputError, nearest

# The folders of fedrecall, Python and libraries.
NOT_THEIRS = tuple(
    folder + os.sep
    for folder in {
        str(Path(__file__).parent),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    }
)
GENERATED = ("<frozen", "<eval_with_key", "<string>")
WORKING_FOLDERS: list[str] = []  # added to `sys.path` by this process


def is_theirs(file: str) -> bool:
    return not file.startswith((*NOT_THEIRS, *GENERATED))


def has_their_lines(error: BaseException) -> bool:
    return any(is_theirs(frame.filename) for frame in traceback.extract_tb(error.__traceback__))


def user_source(thing: Any) -> str | None:
    """Return the source of a user's class or function; None if it is not theirs or cannot be read."""
    try:
        file = inspect.getsourcefile(thing)
        return inspect.getsource(thing) if file is not None and is_theirs(file) else None
    except (TypeError, OSError):  # built in, or typed into an interpreter
        return None


def note_key(error: Exception, key: str, name: str) -> None:
    """Add a note to an exception: the recipe's key that names the code."""
    error.add_note(f"(the recipe's key {key!r} names it: {name!r})")


def their_traceback(error: BaseException) -> str:
    """Return the traceback with the user's lines and the calls below the last one; whole if none is theirs."""
    summary = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = summary
    while part is not None:
        theirs = [at for at, frame in enumerate(part.stack) if is_theirs(frame.filename)]
        if theirs:
            kept = [f for at, f in enumerate(part.stack) if at > theirs[-1] or is_theirs(f.filename)]
            part.stack = traceback.StackSummary.from_list(kept)
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
    return "".join(summary.format())


def import_named(section: str, name: str) -> Callable[..., Any]:
    """Return the class, function or callable object that `module:name` names."""
    module_name, _, attribute = name.partition(":")
    if not attribute or not all(module_name.split(".")):
        raise InputError(f"{section} is {name!r}; 'module:name' was expected")
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        raise InputError(f"{section} is {name!r}, which is Python's own; a class or function of yours was expected")
    add_working_folder()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise InputError(f"{section} is {name!r}, but there is no module {module_name!r} here") from None
        note_key(error, section, name)  # the module exists, but something that it imports does not
        raise
    except Exception as error:
        if isinstance(error, ValueError) and not has_their_lines(error):  # not a valid module name
            raise InputError(f"{section} is {name!r}; 'module:name' was expected") from None
        note_key(error, section, name)
        raise
    found = getattr(module, attribute, None)
    if not callable(found):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(
            f"{section} is {name!r}, but {module_name!r} has no such function; {nearest(attribute, names)}"
        )
    refuse_passed_on(section, name, found)
    return typing.cast(Callable[..., Any], found)


def refuse_passed_on(section: str, name: str, found: Any) -> None:
    """Raise an `InputError` for a function that the module only imports, which may be `os.system`."""
    module_name, _, attribute = name.partition(":")
    home = getattr(found, "__module__", None)
    if inspect.isroutine(found) and home != module_name:
        where = f"'{home}:{found.__name__}' was expected" if home and "." in home else "name it where it is defined"
        raise InputError(f"{section} is {name!r}, but {attribute!r} is not defined in {module_name!r}; {where}")


def add_working_folder() -> None:
    """Add the working folder, which a console script lacks, to `sys.path`: after libraries, so that it hides none,
    and before earlier working folders."""
    here = os.getcwd()
    if here not in sys.path:
        earlier = [sys.path.index(folder) for folder in WORKING_FOLDERS if folder in sys.path]
        sys.path.insert(min(earlier, default=len(sys.path)), here)
        WORKING_FOLDERS.append(here)
