"""From a name and options in a recipe to the thing they name, with errors that say which key is wrong."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from fedrecall.errors import InputError, nearest, short_repr
from fedrecall.user_code import has_their_lines, note_key

# Given by the program, not by the recipe.
SUPPLIED = ("sample_shape", "num_classes", "folder")
WORKING_FOLDERS: list[str] = []  # that were added to the path of this process


def find(section: str, name: str, listing: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The listed thing of this name, or the user's own as `module:name`."""
    if name in listing:
        return listing[name]
    if ":" in name:
        return import_named(section, name)
    raise InputError(f"{section} is {name!r}, which is not known; {nearest(name, listing)}")


def import_named(section: str, name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if not attribute or not all(module_name.split(".")):
        raise InputError(f"{section} is {name!r}; 'module:name' was expected")
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        raise InputError(
            f"{section} is {name!r}, which is Python's own; a class or function of yours was expected"
        )
    add_working_folder()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise InputError(f"{section} is {name!r}, but there is no module {module_name!r} here") from None
        note_key(error, section, name)  # the module is there, and something that it imports is not
        raise
    except Exception as error:
        if isinstance(error, ValueError) and not has_their_lines(error):  # no name that a module could have
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
    """A module has in it whatever it imports, `os.system` perhaps: a function is named where it is defined."""
    module_name, _, attribute = name.partition(":")
    home = getattr(found, "__module__", None)
    if inspect.isroutine(found) and home != module_name:
        where = (
            f"'{home}:{found.__name__}' was expected" if home and "." in home else "name it where it is defined"
        )
        raise InputError(f"{section} is {name!r}, but {attribute!r} is not defined in {module_name!r}; {where}")


def add_working_folder() -> None:
    """Have the user's folder on the path, where a console script has none: last, so that it hides no library, but
    before those in which this process has worked earlier."""
    here = os.getcwd()
    if here not in sys.path:
        earlier = [sys.path.index(folder) for folder in WORKING_FOLDERS if folder in sys.path]
        sys.path.insert(min(earlier, default=len(sys.path)), here)
        WORKING_FOLDERS.append(here)


def parameters(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """What it is called with."""
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):
        name = getattr(target, "__name__", short_repr(target))
        raise InputError(f"nobody knows the parameters of {name!r}; a function in Python was expected") from None


def options(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options that a recipe can give to this class or function, with their defaults and annotations."""
    known = parameters(target)
    # A dataclass may inherit options from other modules, in which their annotations are to be read.
    plain_class = inspect.isclass(target) and not is_dataclass(target)
    hints = typing.get_type_hints(target.__init__ if plain_class else target, include_extras=True)
    found = {}
    for name, parameter in known.items():
        if name in SUPPLIED or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        found[name] = parameter.replace(annotation=hints.get(name, Any))
    return found


def complete(section: str, target: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given options, checked, with the defaults of those that were not given."""
    known = options(target)
    for key in given:
        if key not in known:
            raise InputError(f"there is no key '{section}.{key}'; {nearest(key, known)}")
    values = {}
    for key, parameter in known.items():
        if key not in given and parameter.default is parameter.empty:
            raise InputError(f"the key '{section}.{key}' is missing")
        values[key] = (
            check_option(f"{section}.{key}", given[key], parameter) if key in given else parameter.default
        )
    return values


def check_option(key: str, value: Any, parameter: inspect.Parameter) -> Any:
    try:
        return TypeAdapter(parameter.annotation).validate_python(value)
    except PydanticSchemaGenerationError:
        if value is None and parameter.default is None:  # as a run's own recipe spells it out
            return None
        kind = getattr(parameter.annotation, "__name__", str(parameter.annotation))
        raise InputError(
            f"{key} is {short_repr(value)}, but its type, {kind}, is none that a recipe has"
        ) from None
    except ValidationError as error:
        said = error.errors()[0]["msg"]
        expected = said.replace("Input should be", "it should be").replace("Value error, ", "")
        raise InputError(f"{key} is {short_repr(value)}; {expected}") from None


def instantiate(
    section: str, target: Callable[..., Any], given: Mapping[str, Any], supplied: Mapping[str, Any] | None = None
) -> Any:
    """Call it with the options of the recipe and those of the supplied values that it asks for."""
    accepted = parameters(target)
    extra = {key: value for key, value in (supplied or {}).items() if key in accepted}
    return target(**complete(section, target, given), **extra)
